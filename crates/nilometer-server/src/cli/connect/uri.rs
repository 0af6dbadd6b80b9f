//! Connection strings: `mongodb://user:password@host:port/database?option=value&…`.
//!
//! One host, because the server is a single process. An unknown option is refused, with a list of the known ones. Error
//! messages never show the string, which may hold a password; they name the wrong part.

use std::time::Duration;

use nilometer::auth::Mechanism;
use percent_encoding::percent_decode_str;

use super::super::Failure;
use crate::tls::ClientTls;

/// The default port.
const DEFAULT_PORT: &str = "27017";

/// Default of `connectTimeoutMS`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The known options.
const KNOWN: &str = "authSource, authMechanism, tls, tlsCAFile, tlsCertificateKeyFile, \
     tlsAllowInvalidCertificates, tlsAllowInvalidHostnames, tlsInsecure, connectTimeoutMS, \
     serverSelectionTimeoutMS, directConnection and appName";

/// The login mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoginMethod {
    /// SCRAM; the best that the server offers for the user if none is named.
    Scram(Option<Mechanism>),
    /// The client certificate of the TLS handshake.
    X509,
}

/// The user that logs in.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) method: LoginMethod,
    /// The name; empty if the certificate defines it.
    pub(super) user: String,
    pub(super) password: Option<String>,
    /// The user's database.
    pub(super) source: String,
}

/// A parsed connection string.
#[derive(Clone)]
pub(super) struct Uri {
    pub(super) host: String,
    pub(super) port: String,
    pub(super) account: Option<Account>,
    pub(super) database: Option<String>,
    pub(super) tls: Option<ClientTls>,
    pub(super) connect_timeout: Duration,
    pub(super) app_name: Option<String>,
}

/// The options of a connection string.
#[derive(Default)]
struct UriOptions {
    source: Option<String>,
    mechanism: Option<String>,
    tls: Option<bool>,
    files_and_checks: ClientTls,
    connect_timeout: Option<Duration>,
    app_name: Option<String>,
}

impl Uri {
    /// Parses a connection string, or `host:port` alone.
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        let scheme = text.split_once("://");
        let rest = match scheme {
            None => text,
            Some(("mongodb", rest)) => rest,
            Some(("mongodb+srv", _)) => {
                return Err(refused("mongodb+srv:// is not supported"));
            }
            Some(_) => return Err(refused("it does not begin with mongodb://")),
        };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        // An @ in a name or a password is written %40, so the last one ends them.
        let (login, rest) = match rest.rsplit_once('@') {
            None => (None, rest),
            Some((login, rest)) => (Some(login), rest),
        };
        let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = host_and_port(address)?;
        let database = decoded(path, "the database")?;
        let database = (!database.is_empty()).then_some(database);
        let options = UriOptions::parse(options)?;
        Ok(Self {
            host,
            port,
            account: options.account(login, database.as_deref())?,
            database,
            tls: options.tls()?,
            connect_timeout: options.connect_timeout.unwrap_or(CONNECT_TIMEOUT),
            app_name: options.app_name,
        })
    }
}

impl Uri {
    /// The server as `host:port`.
    pub(super) fn address(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// `host`, `host:port`, `[::1]:port`.
fn host_and_port(address: &str) -> Result<(String, String), Failure> {
    if address.contains(',') {
        return Err(refused("it names more than one host"));
    }
    let wrong = || refused("the address does not have the form HOST:PORT");
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => {
            let (host, behind) = rest.split_once(']').ok_or_else(wrong)?;
            match behind.strip_prefix(':') {
                None if behind.is_empty() => (host, DEFAULT_PORT),
                None => return Err(wrong()),
                Some(port) => (host, port),
            }
        }
        None => address.split_once(':').unwrap_or((address, DEFAULT_PORT)),
    };
    if host.is_empty() {
        return Err(refused("it names no host"));
    }
    if port.parse::<u16>().is_err() {
        return Err(wrong());
    }
    Ok((decoded(host, "the host")?, port.to_owned()))
}

impl UriOptions {
    fn parse(text: &str) -> Result<Self, Failure> {
        let mut options = Self::default();
        let mut seen: Vec<String> = Vec::new();
        for option in text.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option
                .split_once('=')
                .ok_or_else(|| refused(&format!("the option {option} has no value")))?;
            let lower = name.to_ascii_lowercase();
            if seen.contains(&lower) {
                return Err(refused(&format!("the option {name} is given twice")));
            }
            seen.push(lower);
            options.set(name, decoded(value, name)?)?;
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), Failure> {
        let yes = || match value.as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(refused(&format!("{name} is true or false, not {value}"))),
        };
        let checks = &mut self.files_and_checks;
        // Names are case-insensitive.
        match name.to_ascii_lowercase().as_str() {
            "authsource" => self.source = Some(value),
            "authmechanism" => self.mechanism = Some(value),
            "tls" | "ssl" => self.tls = Some(yes()?),
            "tlscafile" => checks.ca_file = Some(value.into()),
            "tlscertificatekeyfile" => checks.certificate_key_file = Some(value.into()),
            "tlsallowinvalidcertificates" => checks.allow_invalid_certificates = yes()?,
            "tlsallowinvalidhostnames" => checks.allow_invalid_hostnames = yes()?,
            "tlsinsecure" => {
                checks.allow_invalid_certificates = yes()?;
                checks.allow_invalid_hostnames = yes()?;
            }
            "connecttimeoutms" | "serverselectiontimeoutms" => {
                let ms: u64 =
                    value.parse().ok().filter(|ms| *ms > 0).ok_or_else(|| {
                        refused(&format!("{name} must be a number of milliseconds"))
                    })?;
                let given = Duration::from_millis(ms);
                let shorter = self.connect_timeout.map_or(given, |other| other.min(given));
                self.connect_timeout = Some(shorter);
            }
            // The connection is always direct.
            "directconnection" => drop(yes()?),
            "appname" => self.app_name = Some(value),
            _ => {
                return Err(refused(&format!(
                    "unknown option {name}; known are {KNOWN}"
                )));
            }
        }
        Ok(())
    }

    fn tls(&self) -> Result<Option<ClientTls>, Failure> {
        let given = self.files_and_checks != ClientTls::default();
        match self.tls {
            Some(false) if given => Err(refused("TLS options are given, but tls=false")),
            // As in drivers, each of these options implies TLS.
            None if !given => Ok(None),
            Some(false) => Ok(None),
            _ => Ok(Some(self.files_and_checks.clone())),
        }
    }

    /// Returns the user that logs in, if there is one.
    fn account(
        &self,
        login: Option<&str>,
        database: Option<&str>,
    ) -> Result<Option<Account>, Failure> {
        let method = match self.mechanism.as_deref() {
            None => LoginMethod::Scram(None),
            Some("MONGODB-X509") => LoginMethod::X509,
            Some(name) => {
                let known = Mechanism::from_name(name).ok_or_else(|| {
                    refused("authMechanism must be SCRAM-SHA-256, SCRAM-SHA-1 or MONGODB-X509")
                })?;
                LoginMethod::Scram(Some(known))
            }
        };
        let (user, password) = match login {
            None => (String::new(), None),
            Some(login) => {
                let (user, password) = match login.split_once(':') {
                    None => (login, None),
                    Some((user, password)) => (user, Some(password)),
                };
                if login.contains('/') || password.is_some_and(|p| p.contains(':')) {
                    return Err(refused(
                        "in a user and a password the characters : / ? # [ ] @ are written %3A %2F %3F %23 %5B %5D %40",
                    ));
                }
                let password = password.map(|p| decoded(p, "the password")).transpose()?;
                (decoded(user, "the user")?, password)
            }
        };
        let account = |source: &str| Account {
            method,
            user: user.clone(),
            password: password.clone(),
            source: source.to_owned(),
        };
        if method == LoginMethod::X509 {
            if password.is_some() {
                return Err(refused("MONGODB-X509 takes no password"));
            }
            return match self.source.as_deref() {
                None | Some("$external") => Ok(Some(account("$external"))),
                Some(_) => Err(refused("with MONGODB-X509, authSource is $external")),
            };
        }
        if user.is_empty() {
            if login.is_some() {
                return Err(refused("the name of the user is empty"));
            }
            if self.mechanism.is_some() || self.source.is_some() {
                return Err(refused(
                    "it has login options but no user; use mongodb://USER@HOST",
                ));
            }
            return Ok(None);
        }
        let source = self.source.as_deref().or(database).unwrap_or("admin");
        Ok(Some(account(source)))
    }
}

/// Decodes percent-encoding such as `%40`.
fn decoded(text: &str, what: &str) -> Result<String, Failure> {
    let mut rest = text;
    while let Some((_, behind)) = rest.split_once('%') {
        let digits = behind.get(..2).unwrap_or_default();
        if digits.len() < 2 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(refused(&format!(
                "in {what}, a % is not followed by two hexadecimal digits; a % itself is written %25"
            )));
        }
        rest = behind;
    }
    let bytes = percent_decode_str(text).decode_utf8();
    let bytes = bytes.map_err(|_| refused(&format!("{what} is not in UTF-8")))?;
    Ok(bytes.into_owned())
}

fn refused(what: &str) -> Failure {
    Failure::Options(format!(
        "the connection string cannot be used: {what}. Its form is mongodb://USER:PASSWORD@HOST:PORT/?authSource=admin&tls=true, \
         such as mongodb://127.0.0.1:27017"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Uri {
        Uri::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn it_names_a_host_and_a_port() {
        for (uri, host, port) in [
            ("mongodb://127.0.0.1:28000", "127.0.0.1", "28000"),
            ("mongodb://[::1]:28000/", "::1", "28000"),
            ("mongodb://[::1]", "::1", "27017"),
            ("localhost", "localhost", "27017"),
            ("localhost:1", "localhost", "1"),
            ("mongodb://db.example/", "db.example", "27017"),
            ("mongodb://a:p@db.example/x?tls=true", "db.example", "27017"),
        ] {
            let found = parse(uri);
            assert_eq!(
                (found.host.as_str(), found.port.as_str()),
                (host, port),
                "{uri}"
            );
        }
    }

    #[test]
    fn it_says_who_logs_in() {
        let account = |uri: &str| parse(uri).account.expect("an account");
        let found = account("mongodb://a%40b:p%3A%2F%25@h");
        assert_eq!(
            (found.user.as_str(), found.source.as_str()),
            ("a@b", "admin")
        );
        assert_eq!(found.password.as_deref(), Some("p:/%"));
        assert_eq!(found.method, LoginMethod::Scram(None));
        assert_eq!(account("mongodb://a@h/db").source, "db");
        assert_eq!(account("mongodb://a@h/db?authSource=x").source, "x");
        assert_eq!(account("mongodb://a@h").password, None);
        assert_eq!(account("mongodb://a:@h").password.as_deref(), Some(""));
        let sha1 = account("mongodb://a:b@h/?authMechanism=SCRAM-SHA-1");
        assert_eq!(sha1.method, LoginMethod::Scram(Some(Mechanism::Sha1)));
        let certificate = account("mongodb://h/?authMechanism=MONGODB-X509&tls=true");
        assert_eq!(
            (certificate.method, certificate.source.as_str()),
            (LoginMethod::X509, "$external")
        );
        assert!(parse("mongodb://h/db").account.is_none());
        assert_eq!(parse("mongodb://h/db").database.as_deref(), Some("db"));
    }

    #[test]
    fn it_says_how_tls_is_spoken() {
        assert_eq!(parse("mongodb://h").tls, None);
        assert_eq!(parse("mongodb://h/?tls=false").tls, None);
        assert_eq!(
            parse("mongodb://h/?ssl=true").tls,
            Some(ClientTls::default())
        );
        let all = parse(
            "mongodb://h/?tlsCAFile=%2Fa%20b.pem&tlsCertificateKeyFile=/c.pem&TLSallowInvalidHostnames=true",
        );
        let expected = ClientTls {
            ca_file: Some("/a b.pem".into()),
            certificate_key_file: Some("/c.pem".into()),
            allow_invalid_certificates: false,
            allow_invalid_hostnames: true,
        };
        assert_eq!(all.tls, Some(expected));
    }

    #[test]
    fn invalid_strings_are_refused_and_no_password_is_shown() {
        for uri in [
            "",
            "mongodb://",
            "mongodb+srv://a.b",
            "http://a:1",
            "mongodb://a:1,b:2",
            "mongodb://a:b:c",
            "mongodb://a:70000",
            "mongodb://[::1",
            "mongodb://[::1]x",
            "mongodb://@h",
            "mongodb://:secret@h",
            "mongodb://a:secret@secret@h/?x=1",
            "mongodb://a:secret:secret@h",
            "mongodb://a:sec/ret@h",
            "mongodb://a:secret%2@h",
            "mongodb://a:secret%@h",
            "mongodb://a:secret%FF@h",
            "mongodb://a:secret@h/?retryWrites=true",
            "mongodb://a:secret@h/?tls",
            "mongodb://a:secret@h/?tls=yes",
            "mongodb://a:secret@h/?tls=true&ssl=true&tls=true",
            "mongodb://a:secret@h/?tls=false&tlsCAFile=x",
            "mongodb://a:secret@h/?authMechanism=PLAIN",
            "mongodb://a:secret@h/?authMechanism=MONGODB-X509",
            "mongodb://h/?authMechanism=MONGODB-X509&authSource=admin",
            "mongodb://h/?authMechanism=SCRAM-SHA-1",
            "mongodb://h/?authSource=admin",
            "mongodb://a:secret@h/?connectTimeoutMS=0",
        ] {
            let Err(Failure::Options(told)) = Uri::parse(uri) else {
                panic!("{uri} is taken");
            };
            assert!(!told.contains("secret"), "{uri}: {told}");
        }
    }
}
