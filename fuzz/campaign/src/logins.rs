//! Payloads of logins, sent before authentication.
//!
//! In the corpus an input is a file: the first line is the payload of `saslStart`, the second that of `saslContinue`.

use nilometer::services::Environment;
use nilometer::session::ClientMetadata;
use nilometer::{ClientSession, Database, Request};
use nilometer_bson::fuzz::Numbers;
use nilometer_bson::{Binary, Document, Value, array, doc};

use crate::bytes::damage;
use crate::mutation::pick;
use crate::runner::Runner;
use crate::scripts::Seeds;

/// Inputs of one seed.
const BATCH: u64 = 100;

const MECHANISMS: [&str; 3] = ["SCRAM-SHA-256", "SCRAM-SHA-1", "PLAIN"];

const FIRST: [&str; 3] = [
    "n,,n=gauge,r=fyko+d2lbbFgONRv9qkxdawL",
    "n,a=other,n=ga=2Cuge,r=rOprNGfwEbeRWgbNEkqO",
    "\0gauge\0secret",
];

const FINAL: [&str; 2] = [
    "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    "c=biws,r=x,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=,x=1",
];

/// A database with one user, and the number of login attempts.
struct GuardedDatabase {
    database: Database,
    tried: u32,
}

impl GuardedDatabase {
    fn new() -> Self {
        let environment = Environment {
            access_control: true,
            ..Environment::default()
        };
        let cheap = environment
            .parameters
            .set_at_startup("scramSHA256IterationCount", "5000");
        cheap.expect("a parameter");
        let database = Database::in_memory_with(environment).expect("a database");
        let here = ClientMetadata {
            same_machine: true,
            ..ClientMetadata::default()
        };
        let mut owner = ClientSession::new(1, here);
        let create =
            doc! {"createUser": "gauge", "pwd": "secret", "roles": array!["root"], "$db": "admin"};
        let made = database.run_command(&mut owner, &Request::new(create));
        assert_eq!(made.get("ok").as_exact_i64(), Some(1), "{made:?}");
        Self { database, tried: 0 }
    }

    /// True if both steps were answered with `ok: 1`. Noise must not log in.
    fn try_login(&mut self, mechanism: &str, first: &[u8], second: &[u8]) -> bool {
        // From a new address, so that no delay applies.
        self.tried += 1;
        let [_, a, b, c] = self.tried.to_be_bytes();
        let client = ClientMetadata {
            remote: format!("10.{a}.{b}.{c}:1"),
            ..ClientMetadata::default()
        };
        let mut stranger = ClientSession::new(2, client);
        let start = doc! {
            "saslStart": 1, "mechanism": mechanism, "payload": payload(first), "$db": "admin",
        };
        let started = self.run(&mut stranger, start);
        let go_on = doc! {
            "saslContinue": 1, "conversationId": 1, "payload": payload(second), "$db": "admin",
        };
        let went_on = self.run(&mut stranger, go_on);
        let secret = self.run(&mut stranger, doc! {"find": "c", "$db": "db"});
        assert_eq!(secret.get("code").as_exact_i64(), Some(13), "{secret:?}");
        let is_ok = |reply: &Document| reply.get("ok").as_exact_i64() == Some(1);
        is_ok(&started) && is_ok(&went_on)
    }

    fn run(&mut self, session: &mut ClientSession, command: Document) -> Document {
        let reply = self.database.run_command(session, &Request::new(command));
        let code = reply.get("code").as_exact_i64();
        assert_ne!(code, Some(1), "{reply:?}");
        reply
    }
}

fn payload(bytes: &[u8]) -> Value {
    Value::from(Binary {
        subtype: 0,
        bytes: bytes.into(),
    })
}

/// Runs damaged valid payloads.
pub fn batch(_: &Seeds, seed: u64, runner: &mut Runner) {
    let numbers = &mut Numbers::new(seed);
    let mut guarded = GuardedDatabase::new();
    for _ in 0..BATCH {
        let mechanism = *pick(numbers, &MECHANISMS);
        let (mut first, mut second) = (
            pick(numbers, &FIRST).as_bytes().to_vec(),
            pick(numbers, &FINAL).as_bytes().to_vec(),
        );
        if numbers.below(3) != 0 {
            damage(numbers, &mut first);
        }
        damage(numbers, &mut second);
        let shown = || {
            let text = String::from_utf8_lossy;
            format!("{}\n{}", text(&first), text(&second))
        };
        runner.one(shown, || guarded.try_login(mechanism, &first, &second));
    }
}

/// Runs one input of bytes: two payloads separated by a newline, for every mechanism.
pub fn one(bytes: &[u8]) -> bool {
    thread_local! {
        static GUARDED: std::cell::RefCell<Option<GuardedDatabase>> = const { std::cell::RefCell::new(None) };
    }
    let mut parts = bytes.splitn(2, |byte| *byte == b'\n');
    let (first, second) = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    GUARDED.with_borrow_mut(|guarded| {
        let guarded = guarded.get_or_insert_with(GuardedDatabase::new);
        let tried = MECHANISMS.map(|mechanism| guarded.try_login(mechanism, first, second));
        tried.contains(&true)
    })
}

/// Replays a file of the corpus.
pub fn replay(text: &str, runner: &mut Runner) {
    runner.one(|| text.to_owned(), || one(text.as_bytes()));
}
