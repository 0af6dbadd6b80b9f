//! Logging in to a server, and finding the password.

use std::io::IsTerminal;
use std::path::Path;

use nilometer::auth::Mechanism;
use nilometer_bson::Document;

use super::super::Failure;
use super::Connection;
use super::uri::{Account, LoginMethod};
use crate::login::{best_mechanism, by_scram};

/// Environment variable with the password.
const PASSWORD_VARIABLE: &str = "NILOMETER_PASSWORD";

/// Finds the password: in the connection string, the file, the environment, or by prompting.
pub(super) fn find_password(account: &mut Account, file: Option<&Path>) -> Result<(), Failure> {
    if account.method == LoginMethod::X509 || account.password.is_some() {
        return Ok(());
    }
    let password = if let Some(path) = file {
        let text = std::fs::read_to_string(path).map_err(|e| {
            Failure::Options(format!(
                "cannot read --passwordFile {}: {e}",
                path.display()
            ))
        })?;
        text.lines().next().unwrap_or_default().to_owned()
    } else if let Some(password) = std::env::var_os(PASSWORD_VARIABLE) {
        password.into_string().map_err(|_| {
            Failure::Options(format!("{PASSWORD_VARIABLE} is set, but not in UTF-8"))
        })?
    } else if std::io::stderr().is_terminal() {
        let question = format!("Password of {} on {}: ", account.user, account.source);
        rpassword::prompt_password(question)
            .map_err(|e| Failure::Options(format!("cannot prompt for the password: {e}")))?
    } else {
        return Err(Failure::Options(format!(
            "no password for {}, and no terminal to prompt: use --passwordFile, or set {PASSWORD_VARIABLE}",
            account.user
        )));
    };
    account.password = Some(password);
    Ok(())
}

/// Logs in. `hello` is the server's answer to the handshake.
pub(super) fn log_in(
    server: &mut Connection,
    account: &Account,
    hello: &Document,
) -> Result<(), Failure> {
    let outcome = match account.method {
        LoginMethod::X509 => {
            let mut command = nilometer_bson::DocumentBuilder::new();
            command.append("authenticate", 1);
            command.append("mechanism", "MONGODB-X509");
            if !account.user.is_empty() {
                command.append("user", account.user.as_str());
            }
            server.run(&account.source, &command.finish()).map(drop)
        }
        LoginMethod::Scram(named) => {
            let offered = named.or_else(|| best_mechanism(hello));
            let who = (
                account.user.as_str(),
                account.password.as_deref().unwrap_or_default(),
            );
            // A server that offers none may accept the newest.
            by_scram(offered.unwrap_or(Mechanism::Sha256), who, |command| {
                server.run(&account.source, &command)
            })
        }
    };
    outcome.map_err(|failure| match failure {
        Failure::Other(told) => Failure::Other(format!(
            "cannot log in as {} on the database {}: {told}",
            if account.user.is_empty() {
                "the certificate's subject"
            } else {
                &account.user
            },
            account.source
        )),
        other => other,
    })
}
