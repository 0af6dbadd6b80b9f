//! Options for access: logins, TLS, the audit log.

use std::path::PathBuf;

use clap::Args;
use nilometer_bson::Value;

use super::Failure;
use crate::tls::{TlsMode, TlsOptions};

/// The options as given.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SecurityArgs {
    /// Let clients do only what their user is allowed
    #[arg(long, help_heading = "Security")]
    pub(crate) auth: bool,

    /// Which connections use TLS: disabled, allowTLS, preferTLS or requireTLS [default: disabled]
    #[arg(long = "tlsMode", value_name = "MODE", help_heading = "TLS")]
    pub(crate) tls_mode: Option<String>,

    /// PEM file with the server's certificate, its chain and the private key
    #[arg(
        long = "tlsCertificateKeyFile",
        value_name = "FILE",
        help_heading = "TLS"
    )]
    pub(crate) certificate_key_file: Option<PathBuf>,

    /// PEM file with the authorities whose client certificates are accepted
    #[arg(long = "tlsCAFile", value_name = "FILE", help_heading = "TLS")]
    pub(crate) ca_file: Option<PathBuf>,

    /// Do not require client certificates although --tlsCAFile is given
    #[arg(long = "tlsAllowConnectionsWithoutCertificates", help_heading = "TLS")]
    pub(crate) allow_without_certificates: bool,

    /// Disabled protocol versions, separated by commas: TLS1_2, TLS1_3
    #[arg(
        long = "tlsDisabledProtocols",
        value_name = "LIST",
        help_heading = "TLS"
    )]
    pub(crate) disabled_protocols: Option<String>,

    /// Write an audit log; `file` is the only destination
    #[arg(
        long = "auditDestination",
        value_name = "PLACE",
        help_heading = "Audit"
    )]
    pub(crate) audit_destination: Option<String>,

    /// Format of the audit log; `JSON` is the only one
    #[arg(long = "auditFormat", value_name = "FORM", help_heading = "Audit")]
    pub(crate) audit_format: Option<String>,

    /// File of the audit log
    #[arg(long = "auditPath", value_name = "FILE", help_heading = "Audit")]
    pub(crate) audit_path: Option<PathBuf>,
}

/// The resolved options.
#[derive(Debug, Default)]
pub struct Security {
    /// Clients may do only what their user is allowed.
    pub access_control: bool,
    /// TLS, if it is enabled.
    pub tls: Option<TlsOptions>,
    /// File of the audit log, if there is one.
    pub audit: Option<PathBuf>,
}

impl SecurityArgs {
    /// Returns these options, completed with those of `file`.
    pub(super) fn or(self, file: Self) -> Self {
        Self {
            auth: self.auth || file.auth,
            tls_mode: self.tls_mode.or(file.tls_mode),
            certificate_key_file: self.certificate_key_file.or(file.certificate_key_file),
            ca_file: self.ca_file.or(file.ca_file),
            allow_without_certificates: self.allow_without_certificates
                || file.allow_without_certificates,
            disabled_protocols: self.disabled_protocols.or(file.disabled_protocols),
            audit_destination: self.audit_destination.or(file.audit_destination),
            audit_format: self.audit_format.or(file.audit_format),
            audit_path: self.audit_path.or(file.audit_path),
        }
    }

    /// Sets the option at `path` of the configuration file. False if it is not one of these options.
    pub(super) fn set(&mut self, path: &str, text: &str) -> Result<bool, Failure> {
        let text = text.to_owned();
        match path {
            "security.authorization" => {
                self.auth = match text.as_str() {
                    "enabled" => true,
                    "disabled" => false,
                    other => {
                        return Err(Failure::Options(format!(
                            "security.authorization is enabled or disabled, not {other}"
                        )));
                    }
                }
            }
            "net.tls.mode" => self.tls_mode = Some(text),
            "net.tls.certificateKeyFile" => self.certificate_key_file = Some(text.into()),
            "net.tls.CAFile" => self.ca_file = Some(text.into()),
            "net.tls.allowConnectionsWithoutCertificates" => {
                self.allow_without_certificates = text.parse().map_err(|_| {
                    Failure::Options(format!("{path} must be true or false, not {text}"))
                })?;
            }
            "net.tls.disabledProtocols" => self.disabled_protocols = Some(text),
            "auditLog.destination" => self.audit_destination = Some(text),
            "auditLog.format" => self.audit_format = Some(text),
            "auditLog.path" => self.audit_path = Some(text.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks the options and fills in defaults.
    pub(super) fn resolve(&self) -> Result<Security, Failure> {
        Ok(Security {
            access_control: self.auth,
            tls: self.tls()?,
            audit: self.audit()?,
        })
    }

    fn tls(&self) -> Result<Option<TlsOptions>, Failure> {
        let refused = |text: &str| Err(Failure::Options(text.to_owned()));
        let mode = match self.tls_mode.as_deref() {
            None | Some("disabled") => TlsMode::Disabled,
            Some("allowTLS" | "preferTLS") => TlsMode::Optional,
            Some("requireTLS") => TlsMode::Required,
            Some(other) => {
                return Err(Failure::Options(format!(
                    "--tlsMode is disabled, allowTLS, preferTLS or requireTLS, not {other}"
                )));
            }
        };
        let files = self.certificate_key_file.is_some() || self.ca_file.is_some();
        if mode == TlsMode::Disabled {
            if files || self.allow_without_certificates || self.disabled_protocols.is_some() {
                return refused("TLS options are given, but --tlsMode is disabled");
            }
            return Ok(None);
        }
        let Some(certificate_key_file) = self.certificate_key_file.clone() else {
            return refused("need --tlsCertificateKeyFile when TLS is enabled");
        };
        if self.allow_without_certificates && self.ca_file.is_none() {
            return refused("--tlsAllowConnectionsWithoutCertificates needs --tlsCAFile");
        }
        let mut options = TlsOptions {
            mode,
            certificate_key_file,
            ca_file: self.ca_file.clone(),
            allow_without_certificates: self.allow_without_certificates,
            ..TlsOptions::default()
        };
        for name in self.disabled_protocols.iter().flat_map(|l| l.split(',')) {
            match name.trim() {
                // Never enabled.
                "TLS1_0" | "TLS1_1" => {}
                "TLS1_2" => options.without_tls12 = true,
                "TLS1_3" => options.without_tls13 = true,
                other => {
                    return Err(Failure::Options(format!(
                        "--tlsDisabledProtocols does not know {other}; it knows TLS1_0, TLS1_1, TLS1_2 and TLS1_3"
                    )));
                }
            }
        }
        if options.without_tls12 && options.without_tls13 {
            return refused("--tlsDisabledProtocols leaves no protocol version");
        }
        Ok(Some(options))
    }

    fn audit(&self) -> Result<Option<PathBuf>, Failure> {
        let refused = |text: String| Err(Failure::Options(text));
        match self.audit_format.as_deref() {
            None | Some("JSON") => {}
            Some(other) => {
                return refused(format!("the audit log can only be JSON, not {other}"));
            }
        }
        match (self.audit_destination.as_deref(), &self.audit_path) {
            (None, None) if self.audit_format.is_none() => Ok(None),
            (Some("file"), Some(path)) => Ok(Some(path.clone())),
            (Some("file"), None) => refused("--auditDestination file needs --auditPath".into()),
            (Some(other), _) => {
                refused(format!("--auditDestination can only be file, not {other}"))
            }
            (None, _) => refused("audit log options need --auditDestination file".into()),
        }
    }

    /// Returns the given options in mongod's sections: section, name, value.
    pub(super) fn parsed(&self) -> Vec<(&'static str, &'static str, Value)> {
        let mut all = Vec::new();
        let mut add = |section, name, value: Option<Value>| {
            if let Some(value) = value {
                all.push((section, name, value));
            }
        };
        let path = |p: &PathBuf| Value::from(p.display().to_string());
        let text = |t: &Option<String>| t.as_deref().map(Value::from);
        let flag = |on: bool| on.then_some(Value::Bool(true));
        add(
            "security",
            "authorization",
            self.auth.then(|| Value::from("enabled")),
        );
        add("net.tls", "mode", text(&self.tls_mode));
        let key = self.certificate_key_file.as_ref().map(path);
        add("net.tls", "certificateKeyFile", key);
        add("net.tls", "CAFile", self.ca_file.as_ref().map(path));
        let without = flag(self.allow_without_certificates);
        add("net.tls", "allowConnectionsWithoutCertificates", without);
        let disabled = text(&self.disabled_protocols);
        add("net.tls", "disabledProtocols", disabled);
        add("auditLog", "destination", text(&self.audit_destination));
        add("auditLog", "format", text(&self.audit_format));
        add("auditLog", "path", self.audit_path.as_ref().map(path));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused() {
        let file = || Some(PathBuf::from("/x"));
        let mode = |mode: &str| SecurityArgs {
            tls_mode: Some(mode.into()),
            certificate_key_file: file(),
            ..SecurityArgs::default()
        };
        assert!(mode("requireTLS").resolve().is_ok());
        for bad in [
            mode("sometimes"),
            mode("disabled"),
            SecurityArgs {
                certificate_key_file: None,
                ..mode("requireTLS")
            },
            SecurityArgs {
                allow_without_certificates: true,
                ..mode("requireTLS")
            },
            SecurityArgs {
                disabled_protocols: Some("TLS1_2,TLS1_3".into()),
                ..mode("requireTLS")
            },
            SecurityArgs {
                disabled_protocols: Some("SSL3".into()),
                ..mode("requireTLS")
            },
            SecurityArgs {
                audit_path: file(),
                ..SecurityArgs::default()
            },
            SecurityArgs {
                audit_destination: Some("syslog".into()),
                ..SecurityArgs::default()
            },
            SecurityArgs {
                audit_destination: Some("file".into()),
                audit_path: file(),
                audit_format: Some("BSON".into()),
                ..SecurityArgs::default()
            },
        ] {
            assert!(bad.resolve().is_err(), "{bad:?}");
        }
    }
}
