//! Logging in by commands as drivers do: for the program's own commands, and for the web page.

use nilometer::auth::{Mechanism, ScramClient, random_bytes};
use nilometer::{Error, ErrorCode};
use nilometer_bson::{Binary, Document, Value, ValueRef, doc};

/// Bytes of the client's nonce.
const NONCE_BYTES: usize = 24;

/// Maximum messages after the first. A login that needs more fails.
const MESSAGES_MAX: usize = 4;

/// Returns the best mechanism that the handshake offers for the user, if it offers a supported one.
pub(crate) fn best_mechanism(hello: &Document) -> Option<Mechanism> {
    let offered = hello.get("saslSupportedMechs").as_array()?;
    let offers = |mechanism: &Mechanism| {
        let mut names = offered.iter().filter_map(ValueRef::as_str);
        names.any(|name| name == mechanism.name())
    };
    [Mechanism::Sha256, Mechanism::Sha1]
        .into_iter()
        .find(offers)
}

/// Proves a password by SCRAM, and checks the server's proof. `run` runs a command on the user's database.
pub(crate) fn by_scram<E: From<Error>>(
    mechanism: Mechanism,
    (user, password): (&str, &str),
    mut run: impl FnMut(Document) -> Result<Document, E>,
) -> Result<(), E> {
    let nonce = random_bytes::<NONCE_BYTES>()?;
    let (mut prover, first) = ScramClient::start(mechanism, user, password, &nonce)?;
    let mut reply = run(doc! {
        "saslStart": 1,
        "mechanism": mechanism.name(),
        "payload": binary(&first),
        "options": doc! {"skipEmptyExchange": true},
    })?;
    let id = reply.get("conversationId").to_value();
    let mut say = prover.prove(payload(&reply))?;
    for number in 0..MESSAGES_MAX {
        let payload_of = binary(&say);
        reply = run(doc! {"saslContinue": 1, "conversationId": id.clone(), "payload": payload_of})?;
        if number == 0 {
            prover.check(payload(&reply))?;
        }
        if matches!(reply.get("done"), ValueRef::Bool(true)) {
            return Ok(());
        }
        say = String::new();
    }
    let endless = Error::new(ErrorCode::AuthenticationFailed, "the login does not end");
    Err(endless.into())
}

fn binary(text: &str) -> Value {
    Value::from(Binary {
        subtype: 0,
        bytes: text.as_bytes().into(),
    })
}

/// Returns the payload of a reply; empty if there is none.
fn payload(reply: &Document) -> &[u8] {
    match reply.get("payload") {
        ValueRef::Binary { bytes, .. } => bytes,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::array;

    #[test]
    fn the_newest_mechanism_is_taken_unless_the_user_has_only_the_old_one() {
        let sha1 = array!["SCRAM-SHA-1"];
        let both = array!["SCRAM-SHA-1", "SCRAM-SHA-256"];
        for (hello, expected) in [
            (doc! {}, None),
            (doc! {"saslSupportedMechs": array!["PLAIN"]}, None),
            (doc! {"saslSupportedMechs": sha1}, Some(Mechanism::Sha1)),
            (doc! {"saslSupportedMechs": both}, Some(Mechanism::Sha256)),
        ] {
            assert_eq!(best_mechanism(&hello), expected, "{hello:?}");
        }
    }
}
