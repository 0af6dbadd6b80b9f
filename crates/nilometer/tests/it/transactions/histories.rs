//! Random histories of several sessions, compared with a model of snapshot isolation, in which the first to commit wins.

use std::collections::{BTreeMap, BTreeSet};

use nilometer_bson::{Document, array, doc};
use nilometer_storage::testing::Effort;
use nilometer_storage::testing::random::Random;

use super::{Session, check_valid, code, find, fixture, insert, is_transient, measurement, update};
use crate::support::show;

/// Random histories.
const HISTORIES: Effort = Effort {
    fast: 25,
    long: 400,
    soak: 10_000,
};

type Contents = BTreeMap<i64, i64>;

/// What a transaction of the model sees, and the documents that it has changed.
struct ModelTransaction {
    before: Contents,
    seen: Contents,
    /// The documents that its statements have changed.
    written: BTreeSet<i64>,
}

fn contents(documents: Vec<Document>) -> Contents {
    let number = |document: &Document, name| document.get(name).as_exact_i64().unwrap();
    let pairs = documents
        .iter()
        .map(|one| (number(one, "_id"), number(one, "v")));
    pairs.collect()
}

/// Draws a statement, and applies it to what its writer sees.
fn statement(
    random: &mut Random,
    collection: &str,
    seen: &mut Contents,
    next: &mut i64,
) -> Document {
    let any = |random: &mut Random, seen: &Contents| {
        let keys: Vec<i64> = seen.keys().copied().collect();
        (!keys.is_empty()).then(|| keys[random.index(keys.len())])
    };
    match (random.below(4), any(random, seen)) {
        (0 | 1, Some(id)) => {
            let by = random.below(9) as i64 + 1;
            *seen.get_mut(&id).unwrap() += by;
            update(
                collection,
                doc! { "_id": id },
                doc! { "$inc": doc! { "v": by } },
            )
        }
        (2, Some(id)) => {
            seen.remove(&id);
            let statement = doc! { "q": doc! { "_id": id }, "limit": 0 };
            doc! { "delete": collection, "deletes": array![statement] }
        }
        _ => {
            let documents = (0..1 + random.below(3)).map(|_| {
                *next += 1;
                let v = random.below(100) as i64;
                seen.insert(*next, v);
                measurement(*next, random.below(200) as i64, v)
            });
            insert(collection, documents.collect())
        }
    }
}

fn changed(before: &Contents, seen: &Contents) -> BTreeSet<i64> {
    let all: BTreeSet<i64> = before.keys().chain(seen.keys()).copied().collect();
    let differs = |id: &i64| before.get(id) != seen.get(id);
    all.into_iter().filter(differs).collect()
}

/// Time series refuse updates of single measurements by their fields, so those histories insert and delete.
fn history(seed: u64, collection: &str) -> (u64, u64) {
    let mut random = Random::new(seed);
    let mut f = fixture();
    let (mut committed, mut next) = (Contents::new(), 0);
    let mut sessions: Vec<_> = (1..=3)
        .map(|id| (Session::new(id), None::<ModelTransaction>))
        .collect();
    let (mut commits, mut conflicts) = (0, 0);
    let of_series = collection == "ts";
    for step in 0..40 {
        let place = format!("seed {seed}, {collection}, step {step}");
        if random.one_in(4) {
            let command = loop {
                let (mut seen, mut number) = (committed.clone(), next);
                let command = statement(&mut random, collection, &mut seen, &mut number);
                if !(of_series && command.as_ref().contains("update")) {
                    (committed, next) = (seen, number);
                    break command;
                }
            };
            f.run(command);
            continue;
        }
        let at = random.index(sessions.len());
        let others = (0..sessions.len()).filter(|other| *other != at);
        let models = others.filter_map(|other| sessions[other].1.as_ref());
        let held_by_others: BTreeSet<i64> =
            models.flat_map(|model| model.written.clone()).collect();
        let (session, model_of_session) = &mut sessions[at];
        if model_of_session.is_some() && random.one_in(4) {
            let Some(model) = model_of_session.take() else {
                continue;
            };
            if random.one_in(4) {
                session.end(&mut f, "abortTransaction");
                continue;
            }
            let reply = session.end(&mut f, "commitTransaction");
            let changed = changed(&model.before, &model.seen);
            let must_fail = changed
                .iter()
                .any(|id| model.before.get(id) != committed.get(id));
            match code(&reply) {
                None => {
                    assert!(!must_fail, "{place}: a lost update");
                    commits += 1;
                    for id in changed {
                        match model.seen.get(&id) {
                            Some(v) => committed.insert(id, *v),
                            None => committed.remove(&id),
                        };
                    }
                }
                Some(112) => {
                    assert!(must_fail, "{place}: {}", show(&reply));
                    conflicts += 1;
                }
                Some(_) => panic!("{place}: {}", show(&reply)),
            }
            let now = f.all(find(collection));
            assert_eq!(contents(now), committed, "{place}");
            continue;
        }
        let model = model_of_session.get_or_insert_with(|| ModelTransaction {
            before: committed.clone(),
            seen: committed.clone(),
            written: BTreeSet::new(),
        });
        if random.one_in(3) {
            let found = session.all(&mut f, find(collection));
            assert_eq!(contents(found), model.seen, "{place}");
            continue;
        }
        let (mut seen, mut number) = (model.seen.clone(), next);
        let command = statement(&mut random, collection, &mut seen, &mut number);
        if of_series && command.as_ref().contains("update") {
            let found = session.all(&mut f, find(collection));
            assert_eq!(contents(found), model.seen, "{place}");
            continue;
        }
        let of_statement = changed(&model.seen, &seen);
        let must_fail = of_statement
            .iter()
            .any(|id| model.before.get(id) != committed.get(id) || held_by_others.contains(id));
        model.written.extend(of_statement);
        (model.seen, next) = (seen, number);
        let reply = session.reply(&mut f, command);
        assert_eq!(
            code(&reply) == Some(112),
            must_fail && !of_series,
            "{place}"
        );
        if code(&reply).is_some() {
            assert!(is_transient(&reply), "{place}");
            (*model_of_session, conflicts) = (None, conflicts + 1);
            session.number += 1;
            session.begun = false;
            continue;
        }
        let found = session.all(&mut f, find(collection));
        assert_eq!(contents(found), model.seen, "{place}");
    }
    check_valid(&mut f);
    (commits, conflicts)
}

#[test]
fn random_histories_are_those_of_snapshot_isolation() {
    for collection in ["c", "ts"] {
        let mut sums = (0, 0);
        for seed in 0..HISTORIES.requested() {
            let (commits, conflicts) = history(seed, collection);
            sums = (sums.0 + commits, sums.1 + conflicts);
        }
        assert!(sums.0 > 10 && sums.1 > 0, "{collection}: {sums:?}");
    }
}
