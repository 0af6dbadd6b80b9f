//! Bank transfers in transactions: `cargo run --release -p nilometer-bench --bin transfers [HOST:PORT]`; without an argument
//! in process, over a new directory.
//!
//! Threads move amounts between accounts of an ordinary collection. A transfer is a transaction of five commands: two reads,
//! two updates by `_id`, and the commit. One that conflicts runs again. The sum of the accounts must stay the same. A server
//! must be started with `--replSet`; its collection `transfers.accounts` is dropped.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nilometer::Database;
use nilometer::services::{Environment, MemberRole, ReplicaSet};
use nilometer_bench::{Options, Target, TemporaryDirectory};
use nilometer_bson::{Array, Binary, Document, DocumentBuilder, Value, array, doc};

#[path = "../processor.rs"]
mod processor;

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const THREADS: u8 = 8;

/// Time of a run.
const SECONDS: u64 = 5;

/// What each account has at first.
const AMOUNT: i64 = 1000;

const CONFLICT: i64 = 112;

/// A session of a connection.
struct Bank {
    target: Target,
    session: Document,
    number: i64,
    random: u64,
    journaled: bool,
}

/// How a transfer ended.
enum Ended {
    Committed,
    Conflict,
}

impl Bank {
    fn new(target: Target, id: u8, journaled: bool) -> Self {
        // Sessions of several runs differ.
        let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let mut bytes = nanos.expect("a time").as_nanos().to_le_bytes().to_vec();
        bytes[15] = id;
        let id = Binary {
            subtype: 4,
            bytes: bytes.into(),
        };
        Self {
            target,
            session: doc! {"id": Value::from(id.clone())},
            number: 0,
            random: u64::from(id.bytes[15]) + 1,
            journaled,
        }
    }

    fn below(&mut self, end: i64) -> i64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % end as u64) as i64
    }

    fn call(&mut self, command: Document, database: &str) -> Document {
        let mut body = DocumentBuilder::extending(command);
        body.append("$db", database);
        let reply = self.target.first().call(&body.finish(), None);
        reply.expect("a reply")
    }

    fn run(&mut self, command: Document) -> Document {
        let reply = self.call(command, "transfers");
        let is_ok = reply.get("ok").as_exact_i64() == Some(1);
        assert!(is_ok && reply.get("writeErrors").is_missing(), "{reply:?}");
        reply
    }

    /// Runs a statement of the transaction.
    fn statement(&mut self, command: Document, starts: bool) -> Document {
        let command = self.in_transaction(command, starts);
        self.run(command)
    }

    fn in_transaction(&self, command: Document, starts: bool) -> Document {
        let mut body = DocumentBuilder::extending(command);
        body.append("lsid", self.session.clone());
        body.append("txnNumber", self.number);
        body.append("autocommit", false);
        if starts {
            body.append("startTransaction", true);
        }
        body.finish()
    }

    fn balance(&mut self, account: i64, starts: bool) -> i64 {
        let find = doc! {"find": "accounts", "filter": doc! {"_id": account}};
        let reply = self.statement(find, starts);
        let cursor = reply.get("cursor").as_document().expect("a cursor");
        let batch = cursor.get("firstBatch").as_array().expect("a batch");
        let document = batch.iter().next().and_then(|one| one.as_document());
        let balance = document.expect("an account").get("balance");
        balance.as_exact_i64().expect("a number")
    }

    /// Sets a balance, unless another transaction has changed the account since the snapshot.
    fn set(&mut self, account: i64, balance: i64) -> Ended {
        let change = doc! {"$set": doc! {"balance": balance}};
        let update = doc! {"q": doc! {"_id": account}, "u": change};
        let update = doc! {"update": "accounts", "updates": array![update]};
        let update = self.in_transaction(update, false);
        let reply = self.call(update, "transfers");
        if reply.get("code").as_exact_i64() == Some(CONFLICT) {
            return Ended::Conflict;
        }
        assert_eq!(reply.get("n").as_exact_i64(), Some(1), "{reply:?}");
        Ended::Committed
    }

    /// Transfers between two of `accounts`.
    fn transfer(&mut self, accounts: i64) -> Ended {
        self.number += 1;
        let from = self.below(accounts);
        let to = (from + 1 + self.below(accounts - 1)) % accounts;
        let amount = 1 + self.below(9);
        let before = self.balance(from, true);
        let other = self.balance(to, false);
        for (account, balance) in [(from, before - amount), (to, other + amount)] {
            if let Ended::Conflict = self.set(account, balance) {
                return Ended::Conflict;
            }
        }
        let commit = doc! {
            "commitTransaction": 1, "lsid": self.session.clone(), "txnNumber": self.number, "autocommit": false,
            "writeConcern": doc! {"w": 1, "j": self.journaled},
        };
        let reply = self.call(commit, "admin");
        match reply.get("code").as_exact_i64() {
            None => Ended::Committed,
            Some(CONFLICT) => Ended::Conflict,
            Some(_) => panic!("{reply:?}"),
        }
    }

    /// Makes the accounts new.
    fn open(&mut self, accounts: i64) {
        self.call(doc! {"drop": "accounts"}, "transfers");
        let all = (0..accounts).map(|id| Value::from(doc! {"_id": id, "balance": AMOUNT}));
        self.run(doc! {"insert": "accounts", "documents": all.collect::<Array>()});
    }

    fn total(&mut self) -> i64 {
        let group = doc! {"_id": Value::Null, "sum": doc! {"$sum": "$balance"}};
        let pipeline = array![doc! {"$group": group}];
        let reply =
            self.run(doc! {"aggregate": "accounts", "pipeline": pipeline, "cursor": doc! {}});
        let cursor = reply.get("cursor").as_document().expect("a cursor");
        let batch = cursor.get("firstBatch").as_array().expect("a batch");
        let document = batch.iter().next().and_then(|one| one.as_document());
        let sum = document.expect("a document").get("sum");
        sum.as_exact_i64().expect("a number")
    }
}

/// Runs transfers of all threads and prints their rate.
fn measure(open: &dyn Fn() -> Target, accounts: i64, journaled: bool) {
    let mut banks: Vec<_> = (0..THREADS)
        .map(|id| Bank::new(open(), id, journaled))
        .collect();
    banks[0].open(accounts);
    let (committed, conflicts) = (AtomicU64::new(0), AtomicU64::new(0));
    let ends = AtomicBool::new(false);
    let (begun, used) = (Instant::now(), processor::time());
    std::thread::scope(|scope| {
        for bank in &mut banks {
            let (committed, conflicts, ends) = (&committed, &conflicts, &ends);
            scope.spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    let count = match bank.transfer(accounts) {
                        Ended::Committed => committed,
                        Ended::Conflict => conflicts,
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(Duration::from_secs(SECONDS));
        ends.store(true, Ordering::Relaxed);
    });
    let (took, used) = (begun.elapsed().as_secs_f64(), processor::time() - used);
    let (committed, conflicts) = (committed.into_inner(), conflicts.into_inner());
    assert_eq!(banks[0].total(), accounts * AMOUNT, "the sum");
    println!(
        "{THREADS} threads, {accounts} accounts, j: {journaled}: {:.0} transfers/s, {:.2} % conflicts, {:.0} µs of processor time of this process for each",
        committed as f64 / took,
        conflicts as f64 * 100.0 / (committed + conflicts).max(1) as f64,
        used * 1e6 / (committed + conflicts).max(1) as f64,
    );
}

fn all(open: &dyn Fn() -> Target) {
    for (accounts, journaled) in [(10_000, false), (10_000, true), (100, false)] {
        measure(open, accounts, journaled);
    }
}

fn main() {
    if let Some(address) = std::env::args().nth(1) {
        let options = Options {
            address,
            ..Options::default()
        };
        return all(&|| Target::open(&options).expect("a server"));
    }
    let directory = TemporaryDirectory::new("transfers");
    let set = ReplicaSet::new("rs", "localhost:27017");
    set.update(|state| state.role = MemberRole::Primary);
    let environment = Environment {
        replica_set: Some(Arc::new(set)),
        ..Environment::default()
    };
    let database = Database::open_with(directory.path(), environment).expect("a database");
    let database = Arc::new(database);
    all(&|| Target::embedded(database.clone(), 1));
}
