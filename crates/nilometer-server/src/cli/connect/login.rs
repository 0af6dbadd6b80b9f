//! Logging in to a server, and where the password comes from.

use std::io::IsTerminal;
use std::path::Path;

use nilometer::auth::{Mechanism, Prover, unguessable};
use nilometer_bson::{Binary, Document, Value, ValueRef, doc};

use super::super::Failure;
use super::Connection;
use super::uri::{Account, Method};

/// Variable of the environment that holds the password.
const PASSWORD_VARIABLE: &str = "NILOMETER_PASSWORD";

/// Bytes of the client's part of the nonce.
const NONCE_BYTES: usize = 24;

/// Messages of a login; one that takes more goes nowhere.
const MESSAGES_MAX: usize = 4;

/// Finds the password: in the connection string, the file, the environment, or by asking.
pub(super) fn find_password(account: &mut Account, file: Option<&Path>) -> Result<(), Failure> {
    if account.method == Method::X509 || account.password.is_some() {
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
            .map_err(|e| Failure::Options(format!("cannot ask for the password: {e}")))?
    } else {
        return Err(Failure::Options(format!(
            "{} has no password, and there is no terminal to ask at: give --passwordFile, or set {PASSWORD_VARIABLE}",
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
        Method::X509 => {
            let mut command = nilometer_bson::DocumentBuilder::new();
            command.append("authenticate", 1);
            command.append("mechanism", "MONGODB-X509");
            if !account.user.is_empty() {
                command.append("user", account.user.as_str());
            }
            server.run(&account.source, &command.finish()).map(drop)
        }
        Method::Scram(named) => scram(server, account, named.unwrap_or_else(|| best(hello))),
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

/// The best mechanism that is offered for the user; a server that tells none has the newest.
fn best(hello: &Document) -> Mechanism {
    let offered = hello.get("saslSupportedMechs").as_array();
    let mut offered = offered.into_iter().flat_map(|names| names.iter());
    let only_old = offered.by_ref().next().is_some_and(|first| {
        let all = std::iter::once(first).chain(offered);
        !all.into_iter()
            .any(|name| name.as_str() == Some(Mechanism::Sha256.name()))
    });
    if only_old {
        Mechanism::Sha1
    } else {
        Mechanism::Sha256
    }
}

fn scram(server: &mut Connection, account: &Account, mechanism: Mechanism) -> Result<(), Failure> {
    let password = account.password.as_deref().unwrap_or_default();
    let nonce = unguessable::<NONCE_BYTES>()?;
    let (mut prover, first) = Prover::start(mechanism, &account.user, password, &nonce)?;
    let begin = doc! {
        "saslStart": 1,
        "mechanism": mechanism.name(),
        "payload": binary(&first),
        "options": doc! {"skipEmptyExchange": true},
    };
    let mut reply = server.run(&account.source, &begin)?;
    let id = reply.get("conversationId").to_value();
    let mut say = prover.prove(payload(&reply)?)?;
    for number in 0..MESSAGES_MAX {
        let go_on = doc! {
            "saslContinue": 1, "conversationId": id.clone(), "payload": binary(&say),
        };
        reply = server.run(&account.source, &go_on)?;
        if number == 0 {
            prover.check(payload(&reply)?)?;
        }
        if matches!(reply.get("done"), ValueRef::Bool(true)) {
            return Ok(());
        }
        say = String::new();
    }
    Err(Failure::Other("the server does not come to an end".into()))
}

fn binary(text: &str) -> Value {
    Value::from(Binary {
        subtype: 0,
        bytes: text.as_bytes().into(),
    })
}

fn payload(reply: &Document) -> Result<&[u8], Failure> {
    match reply.get("payload") {
        ValueRef::Binary { bytes, .. } => Ok(bytes),
        _ => Err(Failure::Other("the answer has no payload".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::array;

    #[test]
    fn the_newest_mechanism_is_taken_unless_the_user_has_only_the_old_one() {
        for (hello, expected) in [
            (doc! {}, Mechanism::Sha256),
            (
                doc! {"saslSupportedMechs": array!["SCRAM-SHA-1"]},
                Mechanism::Sha1,
            ),
            (
                doc! {"saslSupportedMechs": array!["SCRAM-SHA-1", "SCRAM-SHA-256"]},
                Mechanism::Sha256,
            ),
            (doc! {"saslSupportedMechs": array![]}, Mechanism::Sha256),
        ] {
            assert_eq!(best(&hello), expected, "{hello:?}");
        }
    }
}
