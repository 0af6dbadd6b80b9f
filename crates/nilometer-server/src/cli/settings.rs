//! Settings: the given options with checked values and defaults.

use std::path::PathBuf;

use nilometer::parameters::Parameters;
use nilometer_bson::{Document, DocumentBuilder, Value};

use super::args::ServeArgs;
use super::replica_set::ReplicaSetOptions;
use super::{ContinuousSettings, Failure, Security, Storage};
use crate::limits;
use crate::log::Sink;
use crate::wire::Compressor;

/// The default port of MongoDB clients.
const DEFAULT_PORT: u16 = 27017;

/// The settings of a server.
#[derive(Debug)]
pub struct Settings {
    /// The place of the database.
    pub storage: Storage,
    /// The continuous backup, if there is one.
    pub backup: Option<ContinuousSettings>,
    /// Port; 0 if the system chooses.
    pub port: u16,
    /// Hosts to listen on.
    pub hosts: Vec<String>,
    /// Port of HTTP, if it is enabled.
    pub http_port: Option<u16>,
    /// Host names of the web page besides addresses and `localhost`, if it is enabled.
    pub web_hosts: Option<Vec<String>>,
    /// Port for clients of InfluxDB, if it is enabled.
    pub influx_port: Option<u16>,
    /// That port accepts passwords without TLS from other machines.
    pub influx_plaintext: bool,
    /// Milliseconds above which an operation is slow, if given.
    pub slow_ms: Option<i32>,
    /// Maximum open connections.
    pub connections_max: u32,
    /// Compressors offered, best first.
    pub compressors: Vec<Compressor>,
    /// The replica set that clients see, if there is one.
    pub replica_set: Option<ReplicaSetOptions>,
    /// The address at which a node of a cluster is reached, if it was given.
    pub node_address: Option<String>,
    /// Logins, TLS, audit.
    pub security: Security,
    /// Server parameters.
    pub parameters: Parameters,
    /// File for the process id.
    pub pid_file: Option<PathBuf>,
    /// Destination of the log.
    pub sink: Sink,
    /// 0 for operators; higher values log more.
    pub verbosity: u8,
    /// The given options, as `getCmdLineOpts` shows them.
    pub parsed: Document,
}

impl Settings {
    /// Checks the options and fills in defaults.
    pub(crate) fn resolve(given: &ServeArgs) -> Result<Self, Failure> {
        let hosts = match (&given.bind_ip, given.bind_ip_all) {
            (_, true) => vec!["0.0.0.0".to_owned()],
            (None, false) => vec!["127.0.0.1".to_owned()],
            (Some(list), false) => comma_list(list),
        };
        if hosts.is_empty() {
            return Err(Failure::Options("--bind_ip names no address".into()));
        }
        let connections_max = given.max_conns.unwrap_or(limits::CONNECTIONS_MAX);
        if connections_max == 0 {
            return Err(Failure::Options("--maxConns must be at least 1".into()));
        }
        if given.logappend && given.logpath.is_none() {
            return Err(Failure::Options("--logappend needs --logpath".into()));
        }
        if given.logs_to_file && given.logpath.is_none() {
            return Err(Failure::Options(
                "systemLog.destination: file needs systemLog.path".into(),
            ));
        }
        let web_hosts = web_hosts(given, &hosts)?;
        if given.influx_port.is_some() && given.storage.cluster {
            return Err(Failure::Options(
                "--influxPort is not supported with --cluster: it reads the types of fields from buckets, which a router does not show".into(),
            ));
        }
        if given.influx_plaintext && given.influx_port.is_none() {
            return Err(Failure::Options(
                "--influxPlaintext needs --influxPort".into(),
            ));
        }
        Ok(Self {
            storage: given.storage.resolve(given.dbpath.as_ref())?,
            backup: given.backup.resolve(given.storage.storage.is_some())?,
            port: given.port.unwrap_or(DEFAULT_PORT),
            hosts,
            http_port: given.http_port,
            web_hosts,
            influx_port: given.influx_port,
            influx_plaintext: given.influx_plaintext,
            slow_ms: given.slowms,
            connections_max,
            compressors: compressors(given.compressors.as_deref())?,
            replica_set: match given.storage.cluster {
                false => given
                    .replica_set
                    .resolve(given.storage.standby || given.storage.read_only)?,
                true => None,
            },
            node_address: match given.storage.cluster {
                false => None,
                true => given.replica_set.node_address()?,
            },
            security: given.security.resolve()?,
            parameters: parameters(given)?,
            pid_file: given.pid_file.clone(),
            sink: match &given.logpath {
                None => Sink::StandardOutput,
                Some(path) => Sink::File {
                    path: path.clone(),
                    append: given.logappend,
                },
            },
            verbosity: given.verbose,
            parsed: parsed(given),
        })
    }
}

fn comma_list(text: &str) -> Vec<String> {
    let parts = text.split(',').map(str::trim);
    parts.filter(|p| !p.is_empty()).map(str::to_owned).collect()
}

/// Returns the host names of the web page: those given and those listened on.
fn web_hosts(given: &ServeArgs, hosts: &[String]) -> Result<Option<Vec<String>>, Failure> {
    if !given.web_page {
        return match given.web_hosts {
            None => Ok(None),
            Some(_) => Err(Failure::Options("--webHosts needs --webPage".into())),
        };
    }
    if given.http_port.is_none() {
        return Err(Failure::Options(
            "--webPage needs a port: --httpPort 28080, for example".into(),
        ));
    }
    let mut names = comma_list(given.web_hosts.as_deref().unwrap_or_default());
    names.extend_from_slice(hosts);
    Ok(Some(names))
}

fn compressors(list: Option<&str>) -> Result<Vec<Compressor>, Failure> {
    match list {
        None => Ok(Compressor::OFFERED.to_vec()),
        Some("disabled") => Ok(Vec::new()),
        Some(list) => comma_list(list)
            .iter()
            .map(|name| {
                Compressor::from_name(name).ok_or_else(|| {
                    Failure::Options(format!("Invalid network message compressor: {name}"))
                })
            })
            .collect(),
    }
}

fn parameters(given: &ServeArgs) -> Result<Parameters, Failure> {
    let parameters = Parameters::default();
    if given.quiet {
        let set = parameters.set_at_startup("quiet", "true");
        set.map_err(|e| Failure::Options(e.message))?;
    }
    for pair in &given.set_parameter {
        let (name, value) = pair.split_once('=').ok_or_else(|| {
            Failure::Options(format!("--setParameter takes NAME=VALUE, not {pair}"))
        })?;
        let set = parameters.set_at_startup(name, value);
        set.map_err(|e| Failure::Options(e.message))?;
    }
    Ok(parameters)
}

/// Returns the given options in mongod's sections.
// long function: a list of all option names
fn parsed(given: &ServeArgs) -> Document {
    let path = |p: &PathBuf| Value::from(p.display().to_string());
    let mut root = DocumentBuilder::new();
    root.append("config", given.config.as_ref().map(path));
    type Fields<'a> = Vec<(&'a str, Option<Value>)>;
    let sections: [(&str, Fields<'_>); 10] = [
        ("auditLog", Vec::new()),
        ("backup", given.backup.parsed().to_vec()),
        (
            "net",
            vec![
                ("bindIp", given.bind_ip.as_deref().map(Value::from)),
                ("bindIpAll", given.bind_ip_all.then_some(Value::Bool(true))),
                (
                    "maxIncomingConnections",
                    given.max_conns.map(|n| Value::Int64(n.into())),
                ),
                ("port", given.port.map(|p| Value::Int32(p.into()))),
                ("httpPort", given.http_port.map(|p| Value::Int32(p.into()))),
                ("webPage", given.web_page.then_some(Value::Bool(true))),
                ("webHosts", given.web_hosts.as_deref().map(Value::from)),
                (
                    "influxPort",
                    given.influx_port.map(|p| Value::Int32(p.into())),
                ),
                (
                    "influxPlaintext",
                    given.influx_plaintext.then_some(Value::Bool(true)),
                ),
            ],
        ),
        (
            "operationProfiling",
            vec![("slowOpThresholdMs", given.slowms.map(Value::Int32))],
        ),
        (
            "processManagement",
            vec![("pidFilePath", given.pid_file.as_ref().map(path))],
        ),
        ("replication", given.replica_set.parsed()),
        ("security", Vec::new()),
        (
            "setParameter",
            given
                .set_parameter
                .iter()
                .filter_map(|pair| pair.split_once('='))
                .map(|(name, value)| (name, Some(Value::from(value))))
                .collect(),
        ),
        (
            "storage",
            std::iter::once(("dbPath", given.dbpath.as_ref().map(path)))
                .chain(given.storage.parsed())
                .chain([given.replica_set.parsed_storage()])
                .collect(),
        ),
        (
            "systemLog",
            vec![
                (
                    "destination",
                    given.logpath.as_ref().map(|_| Value::from("file")),
                ),
                ("path", given.logpath.as_ref().map(path)),
                ("logAppend", given.logappend.then_some(Value::Bool(true))),
                ("quiet", given.quiet.then_some(Value::Bool(true))),
                (
                    "verbosity",
                    (given.verbose > 0).then_some(Value::Int32(given.verbose.into())),
                ),
            ],
        ),
    ];
    let mut security = given.security.parsed();
    for (name, fields) in sections {
        let mut section = DocumentBuilder::new();
        for (name, value) in fields {
            section.append(name, value);
        }
        append(&mut section, &mut security, name);
        let mut tls = DocumentBuilder::new();
        append(&mut tls, &mut security, &format!("{name}.tls"));
        if !tls.is_empty() {
            section.append("tls", tls.finish());
        }
        if !section.is_empty() {
            root.append(name, section.finish());
        }
    }
    root.finish()
}

/// Moves the access options of `section`.
fn append(
    out: &mut DocumentBuilder,
    given: &mut Vec<(&'static str, &'static str, Value)>,
    section: &str,
) {
    given.retain(|(of, name, value)| {
        if *of == section {
            out.append(name, value.clone());
        }
        *of != section
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_manual() {
        let settings = Settings::resolve(&ServeArgs::default()).unwrap();
        assert_eq!(settings.port, 27017);
        assert_eq!(settings.hosts, ["127.0.0.1"]);
        assert!(settings.parsed.is_empty());
    }

    #[test]
    fn what_was_given_is_shown_in_sections() {
        let given = ServeArgs {
            port: Some(1),
            dbpath: Some("/x".into()),
            set_parameter: vec!["ttlMonitorSleepSecs=5".into()],
            ..ServeArgs::default()
        };
        let settings = Settings::resolve(&given).unwrap();
        let net = settings.parsed.get("net").as_document().unwrap();
        assert_eq!(net.get("port").as_exact_i64(), Some(1));
        let storage = settings.parsed.get("storage").as_document().unwrap();
        assert_eq!(storage.get("dbPath").as_str(), Some("/x"));
        assert_eq!(settings.parameters.ttl_monitor_sleep_secs(), 5);
    }

    #[test]
    fn nonsense_is_refused() {
        let refused = |given: ServeArgs| Settings::resolve(&given).is_err();
        assert!(refused(ServeArgs {
            bind_ip: Some(",".into()),
            ..ServeArgs::default()
        }));
        assert!(refused(ServeArgs {
            max_conns: Some(0),
            ..ServeArgs::default()
        }));
        assert!(refused(ServeArgs {
            compressors: Some("gzip".into()),
            ..ServeArgs::default()
        }));
        assert!(refused(ServeArgs {
            set_parameter: vec!["x".into()],
            ..ServeArgs::default()
        }));
        assert!(refused(ServeArgs {
            set_parameter: vec!["x=1".into()],
            ..ServeArgs::default()
        }));
        assert!(refused(ServeArgs {
            web_page: true,
            ..ServeArgs::default()
        }));
        assert!(refused(ServeArgs {
            http_port: Some(1),
            web_hosts: Some("a".into()),
            ..ServeArgs::default()
        }));
        assert!(refused(ServeArgs {
            logappend: true,
            ..ServeArgs::default()
        }));
    }
}
