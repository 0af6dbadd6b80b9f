//! The configuration file, in the YAML format of mongod.
//!
//! ```yaml
//! storage:
//!   dbPath: /var/lib/nilometer
//! net:
//!   port: 27017
//!   bindIp: 127.0.0.1,::1
//! systemLog:
//!   quiet: true
//! setParameter:
//!   ttlMonitorSleepSecs: 30
//! ```
//!
//! Keys may also be written with dots. An unknown key is an error, and so is a key without a value.

use std::path::{Path, PathBuf};

use yaml_rust2::{Yaml, YamlLoader};

use super::Failure;
use super::args::ServeArgs;

/// Reads a configuration file.
pub(crate) fn read(path: &Path) -> Result<ServeArgs, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| {
        Failure::Options(format!(
            "cannot read the configuration file {}: {e}",
            path.display()
        ))
    })?;
    parse(&text)
}

/// Reads the text of a configuration file.
pub(crate) fn parse(text: &str) -> Result<ServeArgs, Failure> {
    let documents = YamlLoader::load_from_str(text)
        .map_err(|e| Failure::Options(format!("the configuration file is not YAML: {e}")))?;
    let mut given = ServeArgs::default();
    match documents.as_slice() {
        [] => {}
        [root] => walk("", root, &mut given)?,
        _ => {
            return Err(Failure::Options(
                "the configuration file holds more than one document".into(),
            ));
        }
    }
    Ok(given)
}

/// Keys that hold keys. They may be empty.
const SECTIONS: [&str; 13] = [
    "",
    "auditLog",
    "backup",
    "net",
    "net.compression",
    "net.tls",
    "operationProfiling",
    "processManagement",
    "replication",
    "security",
    "setParameter",
    "storage",
    "systemLog",
];

/// Applies `value` at `path`. Recurses into sections.
fn walk(path: &str, value: &Yaml, given: &mut ServeArgs) -> Result<(), Failure> {
    let is_section = SECTIONS.contains(&path);
    let refused = |text: String| Err(Failure::Options(text));
    match value {
        Yaml::Hash(section) if is_section || !section.is_empty() => {
            for (key, value) in section {
                let key = scalar(path, key)?;
                let path = if path.is_empty() {
                    key
                } else {
                    format!("{path}.{key}")
                };
                walk(&path, value, given)?;
            }
            Ok(())
        }
        Yaml::Null if is_section => Ok(()),
        Yaml::Hash(_) | Yaml::Null => refused(format!("{path} has no value")),
        _ if path.is_empty() => refused("the configuration file holds no keys".into()),
        _ if is_section => refused(format!("{path} is a section with keys and takes no value")),
        _ => set(path, value, given),
    }
}

fn set(path: &str, value: &Yaml, given: &mut ServeArgs) -> Result<(), Failure> {
    let text = scalar(path, value)?;
    if given.security.set(path, &text)?
        || given.storage.set(path, &text)?
        || given.replica_set.set(path, &text)?
        || given.backup.set(path, &text)?
    {
        return Ok(());
    }
    match path {
        "storage.dbPath" => given.dbpath = Some(PathBuf::from(text)),
        "net.port" => given.port = Some(number(path, &text)?),
        "net.bindIp" => given.bind_ip = Some(text),
        "net.bindIpAll" => given.bind_ip_all = boolean(path, &text)?,
        "net.maxIncomingConnections" => given.max_conns = Some(number(path, &text)?),
        "net.httpPort" => given.http_port = Some(number(path, &text)?),
        "net.webPage" => given.web_page = boolean(path, &text)?,
        "net.webHosts" => given.web_hosts = Some(text),
        "net.influxPort" => given.influx_port = Some(number(path, &text)?),
        "net.influxPlaintext" => given.influx_plaintext = boolean(path, &text)?,
        "operationProfiling.slowOpThresholdMs" => given.slowms = Some(number(path, &text)?),
        "net.compression.compressors" => given.compressors = Some(text),
        "processManagement.pidFilePath" => given.pid_file = Some(PathBuf::from(text)),
        "systemLog.quiet" => given.quiet = boolean(path, &text)?,
        "systemLog.verbosity" => given.verbose = number(path, &text)?,
        "systemLog.path" => given.logpath = Some(PathBuf::from(text)),
        "systemLog.logAppend" => given.logappend = boolean(path, &text)?,
        "systemLog.destination" if text == "file" => given.logs_to_file = true,
        "systemLog.destination" => {
            return Err(Failure::Options(format!(
                "systemLog.destination can only be file, not {text}"
            )));
        }
        _ => match path.strip_prefix("setParameter.") {
            Some(name) => given.set_parameter.push(format!("{name}={text}")),
            None => return Err(Failure::Options(format!("Unrecognized option: {path}"))),
        },
    }
    Ok(())
}

fn scalar(path: &str, value: &Yaml) -> Result<String, Failure> {
    match value {
        Yaml::String(text) | Yaml::Real(text) => Ok(text.clone()),
        Yaml::Integer(number) => Ok(number.to_string()),
        Yaml::Boolean(value) => Ok(value.to_string()),
        _ => Err(Failure::Options(format!(
            "{path} must be a text, a number, true or false"
        ))),
    }
}

fn number<T: TryFrom<i64>>(path: &str, text: &str) -> Result<T, Failure> {
    let refused = |what: &str| Failure::Options(format!("{path} must be {what}, not {text}"));
    let number: i64 = text.parse().map_err(|_| refused("a whole number"))?;
    T::try_from(number).map_err(|_| refused("a number within its range"))
}

/// Reads a truth value.
pub(super) fn boolean(path: &str, text: &str) -> Result<bool, Failure> {
    text.parse()
        .map_err(|_| Failure::Options(format!("{path} must be true or false, not {text}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_the_format_of_mongod() {
        let given = parse(
            "storage:\n  dbPath: /data\nnet:\n  port: 1234\n  bindIp: 127.0.0.1,::1\n\
             systemLog:\n  destination: file\n  path: /log\n  quiet: true\n\
             setParameter:\n  ttlMonitorSleepSecs: 5\n",
        )
        .unwrap();
        assert_eq!(given.dbpath, Some(PathBuf::from("/data")));
        assert_eq!(given.port, Some(1234));
        assert_eq!(given.bind_ip.as_deref(), Some("127.0.0.1,::1"));
        assert_eq!(given.logpath, Some(PathBuf::from("/log")));
        assert!(given.quiet);
        assert_eq!(given.set_parameter, ["ttlMonitorSleepSecs=5"]);
    }

    #[test]
    fn dotted_keys_and_empty_files() {
        assert_eq!(parse("net.port: 7").unwrap().port, Some(7));
        assert_eq!(parse("").unwrap().port, None);
        assert_eq!(parse("# nothing\n").unwrap().port, None);
        assert_eq!(parse("net:\n  # port: 5\n").unwrap().port, None);
    }

    #[test]
    fn errors_name_the_key_and_its_type() {
        let complaint = |text: &str| parse(text).unwrap_err().to_string();
        for (text, expected) in [
            ("net:\n  port: x", "net.port must be a whole number, not x"),
            (
                "net:\n  port: 70000",
                "net.port must be a number within its range, not 70000",
            ),
            ("net:\n  port:", "net.port has no value"),
            ("net: 5", "net is a section with keys and takes no value"),
            (
                "storage:\n  engine: x",
                "Unrecognized option: storage.engine",
            ),
        ] {
            assert_eq!(complaint(text), expected);
        }
        let settled =
            crate::cli::Settings::resolve(&parse("systemLog:\n  destination: file\n").unwrap());
        let text = settled.unwrap_err().to_string();
        assert_eq!(text, "systemLog.destination: file needs systemLog.path");
    }

    #[test]
    fn invalid_files_are_refused() {
        for text in [
            "storage:\n  engine: x\n",
            "net:\n  port: 70000\n",
            "net:\n  port: [1]\n",
            "systemLog:\n  destination: syslog\n",
            "systemLog:\n  quiet: perhaps\n",
            "systemLog:\n  verbosity: x\n",
            "a: b: c",
            "just text",
            "foo:\n",
            "foo: {}\n",
            "storage:\n  journal:\n",
            "net:\n  port:\n",
            "net: 5\n",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
