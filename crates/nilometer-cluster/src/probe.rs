//! What a store must do for one writer to be the only one, tried before a database is opened.
//!
//! Safety rests on one property: of concurrent requests to create one object exactly one succeeds. Some stores ignore the
//! condition, some refuse it, and some check it before they write, so that two writers pass. So several requests race for
//! one new object, and this is repeated; a store in which two win is refused. Rare errors of a store may pass: the probe
//! finds stores that are not made for it.
//!
//! ```text
//! <path>/probe/<random>-<round>     RACERS requests at once, each with its own number as the contents
//! ```
//!
//! The objects are removed at the end. A process that is killed meanwhile leaves a few bytes there, which are not read.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use nilometer_storage::{Error, Result};
use object_store::path::Path;
use object_store::{
    Error as StoreError, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutResult, UpdateVersion,
};

use crate::error::{report, store_error};

/// Objects that are raced for.
const ROUNDS: usize = 8;

/// Concurrent requests for one object.
const RACERS: usize = 8;

/// Attempts at an object that no contender could create: the reply to the one that did may have been lost.
const ATTEMPTS_MAX: usize = 3;

/// What every racer does.
const CREATE: &str = "create an object that is absent";

/// The folder of the objects.
const FOLDER: &str = "probe";

/// What a store can do besides creating objects only if they are absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreAbilities {
    /// It replaces an object only if it is a certain version.
    pub has_conditional_overwrites: bool,
}

/// Tries the store below `path`. Fails with the reason if it must not have a database.
pub async fn probe(store: &Arc<dyn ObjectStore>, path: &str) -> Result<StoreAbilities> {
    let folder = Path::from(path).join(FOLDER);
    let random = RandomState::new().build_hasher().finish();
    let mut objects = Vec::new();
    let abilities = probe_objects(store, &folder, random, &mut objects).await;
    let removed = remove(store, objects).await;
    let abilities = abilities?;
    removed.map_err(|error| store_error("delete an object", &error))?;
    Ok(abilities)
}

/// Probes with new objects of `folder`, whose names are added to `objects`.
async fn probe_objects(
    store: &Arc<dyn ObjectStore>,
    folder: &Path,
    random: u64,
    objects: &mut Vec<Path>,
) -> Result<StoreAbilities> {
    let mut won = None;
    for round in 0..ROUNDS {
        let mut attempt = 0;
        won = loop {
            let object = folder
                .clone()
                .join(format!("{random:016x}-{round}-{attempt}"));
            objects.push(object.clone());
            if let Some(winner) = race(store, &object).await? {
                break Some((object, winner));
            }
            attempt += 1;
            if attempt == ATTEMPTS_MAX {
                return Err(Error::Store {
                    reason: format!(
                        "none of {RACERS} requests to create one object succeeded, {ATTEMPTS_MAX} times"
                    ),
                });
            }
        };
    }
    let has_conditional_overwrites = match won {
        Some((object, version)) => overwrites_conditionally(store, &object, version).await,
        None => false,
    };
    Ok(StoreAbilities {
        has_conditional_overwrites,
    })
}

/// Races for one object. Returns its version; `None` if no contender got it.
async fn race(store: &Arc<dyn ObjectStore>, object: &Path) -> Result<Option<PutResult>> {
    let create = |racer: usize| async move {
        let options = PutOptions::from(PutMode::Create);
        let contents = racer.to_string().into();
        (racer, store.put_opts(object, contents, options).await)
    };
    let mut racing = (0..RACERS).map(create).collect::<FuturesUnordered<_>>();
    let (mut winners, mut failures) = (Vec::new(), Vec::new());
    while let Some((racer, outcome)) = racing.next().await {
        match outcome {
            Ok(version) => winners.push((racer, version)),
            Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {}
            Err(error @ (StoreError::NotSupported { .. } | StoreError::NotImplemented { .. })) => {
                return Err(refuses_condition(&error));
            }
            // It may have taken effect all the same.
            Err(error @ StoreError::Generic { .. }) => failures.push(error),
            Err(error) => return Err(store_error(CREATE, &error)),
        }
    }
    if winners.len() > 1 {
        return Err(refused(format!(
            "{} of {RACERS} concurrent requests to create one object succeeded, instead of one",
            winners.len()
        )));
    }
    let Some((winner, version)) = winners.pop() else {
        return match failures.first() {
            Some(error) if failures.len() == RACERS => Err(explain(store, object, error).await),
            _ => Ok(None),
        };
    };
    let read = store.get(object).await;
    let contents = match read {
        Ok(found) => found.bytes().await,
        Err(error) => Err(error),
    };
    let contents = contents.map_err(|error| store_error("read an object", &error))?;
    if contents[..] != *winner.to_string().as_bytes() {
        return Err(refused(
            "an object has the contents of a request that it reported as failed".to_owned(),
        ));
    }
    Ok(Some(version))
}

/// Explains why no conditional request succeeded: whether the store takes others.
async fn explain(store: &Arc<dyn ObjectStore>, object: &Path, error: &StoreError) -> Error {
    match store.put(object, "any".into()).await {
        Ok(_) => refuses_condition(error),
        Err(_) => store_error(CREATE, error),
    }
}

fn refuses_condition(error: &StoreError) -> Error {
    refused(format!(
        "it refuses to create an object only if it is absent ({})",
        report(error)
    ))
}

/// True if the store replaces an object that has the expected version, and no other.
async fn overwrites_conditionally(
    store: &Arc<dyn ObjectStore>,
    object: &Path,
    created: PutResult,
) -> bool {
    let overwrite = |version: UpdateVersion, contents: &'static str| async move {
        let options = PutOptions::from(PutMode::Update(version));
        store.put_opts(object, contents.into(), options).await
    };
    let version = UpdateVersion::from(created);
    let first = overwrite(version.clone(), "first").await;
    let second = overwrite(version, "second").await;
    first.is_ok() && matches!(second, Err(StoreError::Precondition { .. }))
}

async fn remove(
    store: &Arc<dyn ObjectStore>,
    objects: Vec<Path>,
) -> std::result::Result<(), StoreError> {
    let objects = futures::stream::iter(objects.into_iter().map(Ok)).boxed();
    let mut removed = store.delete_stream(objects);
    let mut outcome = Ok(());
    while let Some(one) = removed.next().await {
        match one {
            Ok(_) | Err(StoreError::NotFound { .. }) => {}
            Err(error) => outcome = Err(error),
        }
    }
    outcome
}

/// Returns the error of a store in which two writers could be at work.
fn refused(why: String) -> Error {
    Error::Store {
        reason: format!(
            "this store cannot have a database, because two writers could be at work at once: {why}"
        ),
    }
}
