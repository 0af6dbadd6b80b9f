//! The test vectors of the RFCs, and every way to fail.

use std::sync::OnceLock;

use super::*;

/// A conversation as printed in an RFC.
struct Vector {
    mechanism: Mechanism,
    password: &'static str,
    salt: &'static str,
    client_first: &'static str,
    server_nonce: &'static str,
    server_first: &'static str,
    client_final: &'static str,
    server_final: &'static str,
}

/// RFC 5802, section 5.
const SHA_1: Vector = Vector {
    mechanism: Mechanism::Sha1,
    password: "pencil",
    salt: "QSXCR+Q6sek8bf92",
    client_first: "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
    server_nonce: "3rfcNHYJY1ZVvWVs7j",
    server_first: "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
    client_final: "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    server_final: "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
};

/// RFC 7677, section 3.
const SHA_256: Vector = Vector {
    mechanism: Mechanism::Sha256,
    password: "pencil",
    salt: "W22ZaJ0SNY7soEsUEjb6gQ==",
    client_first: "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    server_nonce: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    server_first: "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    client_final: "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    server_final: "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
};

/// Credentials of [`SHA_1`] and [`SHA_256`], derived once: 4096 rounds take a while without optimisation.
static CREDENTIALS: [OnceLock<Credentials>; 2] = [OnceLock::new(), OnceLock::new()];

impl Vector {
    fn credentials(&self) -> Credentials {
        let slot = match self.mechanism {
            Mechanism::Sha1 => &CREDENTIALS[0],
            Mechanism::Sha256 => &CREDENTIALS[1],
        };
        let derive = || {
            let salt = BASE64.decode(self.salt).unwrap();
            Credentials::derive(self.mechanism, self.password, &salt, 4096)
        };
        slot.get_or_init(derive).clone()
    }

    fn begin(&self, exists: bool, skip_empty: bool) -> (Conversation, String) {
        let kept = self.credentials();
        let first = ClientFirst::parse(self.client_first.as_bytes()).unwrap();
        assert_eq!(first.user, "user");
        Conversation::start(
            self.mechanism,
            &first,
            UserName::new("user", "admin"),
            (kept, exists),
            self.server_nonce,
            skip_empty,
        )
    }

    fn prover(&self) -> ScramClient {
        let nonce = self.client_first.rsplit_once("r=").unwrap().1;
        let password = self.password.to_owned();
        let (prover, first) = ScramClient::with(self.mechanism, "user", password, nonce.to_owned());
        assert_eq!(first, self.client_first);
        prover
    }
}

#[test]
fn a_client_sends_the_messages_of_the_rfcs() {
    for vector in [SHA_1, SHA_256] {
        let mut prover = vector.prover();
        assert!(prover.check(vector.server_final.as_bytes()).is_err());
        let proof = prover.prove(vector.server_first.as_bytes()).unwrap();
        assert_eq!(proof, vector.client_final);
        assert!(prover.check(vector.server_final.as_bytes()).is_ok());
        for at in 0..vector.server_final.len() {
            let mut bad = vector.server_final.as_bytes().to_vec();
            bad[at] ^= 1;
            assert!(prover.check(&bad).is_err(), "byte {at}");
        }
        assert!(prover.check(b"").is_err());
    }
}

#[test]
fn a_client_refuses_bad_challenges() {
    let first = SHA_256.server_first;
    let own_nonce = SHA_256.client_first.rsplit_once("r=").unwrap().1;
    for bad in [
        "".to_owned(),
        "r=,s=,i=".to_owned(),
        first.replace("r=r", "r=x"),
        first.replace("i=4096", "i=4095"),
        first.replace("i=4096", "i=99999999999"),
        first.replace("i=4096", "i=4294967295"),
        first.replace("s=W", "s=-"),
        format!("r={own_nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"),
        format!("m=ext,{first}"),
    ] {
        assert!(SHA_256.prover().prove(bad.as_bytes()).is_err(), "{bad:?}");
    }
    assert!(SHA_256.prover().prove(&[0xFF]).is_err());
}

#[test]
fn a_client_and_the_server_agree_on_names_and_passwords_of_all_kinds() {
    for (user, password) in [
        ("user", "pencil"),
        ("a=b,c", ",=\u{e9}"),
        ("=2C", "I\u{ad}X"),
        ("n=x,r=y", "ß"),
    ] {
        for mechanism in Mechanism::ALL {
            let (mut prover, first) =
                ScramClient::start(mechanism, user, password, b"nonce").unwrap();
            let first = ClientFirst::parse(first.as_bytes()).unwrap();
            assert_eq!(first.user, user);
            let prepared = mechanism.prepare(user, password).unwrap();
            let kept = Credentials::derive(mechanism, &prepared, b"salt", 4096);
            let name = UserName::new(user, "admin");
            let (mut server, challenge) =
                Conversation::start(mechanism, &first, name, (kept, true), "more", true);
            let proof = prover.prove(challenge.as_bytes()).unwrap();
            let (answer, done) = server.step(proof.as_bytes()).unwrap();
            assert!(done && prover.check(answer.as_bytes()).is_ok());
        }
    }
}

#[test]
fn the_vectors_of_the_rfcs() {
    for vector in [SHA_1, SHA_256] {
        for skip_empty in [true, false] {
            let (mut conversation, answer) = vector.begin(true, skip_empty);
            assert_eq!(answer, vector.server_first);
            assert!(conversation.awaits_proof());
            let (answer, done) = conversation.step(vector.client_final.as_bytes()).unwrap();
            assert_eq!(answer, vector.server_final);
            assert_eq!(done, skip_empty);
            if !skip_empty {
                assert_eq!(conversation.step(b"").unwrap(), (String::new(), true));
            }
            assert!(conversation.step(b"").is_err(), "nothing comes after");
        }
    }
}

#[test]
fn a_proof_that_is_off_by_one_bit_anywhere_fails() {
    for vector in [SHA_1, SHA_256] {
        let good = vector.client_final.as_bytes();
        for at in 0..good.len() {
            let mut bad = good.to_vec();
            bad[at] ^= 1;
            let (mut conversation, _) = vector.begin(true, true);
            assert!(conversation.step(&bad).is_err(), "byte {at}");
            assert!(conversation.step(good).is_err(), "no second try");
        }
    }
}

#[test]
fn a_missing_user_fails_even_with_the_right_proof() {
    let (mut conversation, answer) = SHA_256.begin(false, true);
    assert_eq!(answer, SHA_256.server_first);
    let proof = SHA_256.client_final.as_bytes();
    assert!(conversation.step(proof).is_err());
}

#[test]
fn malformed_first_messages_are_refused() {
    for bad in [
        "",
        "n",
        "n,,",
        "n,,n=user",
        "n,,n=user,r=",
        "n,,n=,r=x",
        "n,,n=us=er,r=x",
        "n,,n=user=2,r=x",
        "p=tls-unique,,n=user,r=x",
        "n,a=other,n=user,r=x",
        "n,,m=ext,n=user,r=x",
        "n,,r=x,n=user",
        "n,,n=us\0er,r=x",
    ] {
        assert!(ClientFirst::parse(bad.as_bytes()).is_err(), "{bad:?}");
    }
    assert!(ClientFirst::parse(&[b'n', b',', b',', 0xFF]).is_err());
    assert!(ClientFirst::parse(&vec![b'n'; MESSAGE_BYTES_MAX + 1]).is_err());
    let read = ClientFirst::parse(b"y,a=a=3Db=2Cc,n=a=3Db=2Cc,r=x").unwrap();
    assert_eq!(read.user, "a=b,c");
    assert_eq!(read.header, "y,a=a=3Db=2Cc,");
}
