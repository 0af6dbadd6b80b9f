//! The placements as they are stored in the router's engine, and the moves of documents that are under way.
//!
//! ```text
//! db.coll        where a collection is
//! \0version      the number of the last change
//! \0move:db.coll  a move of documents that has begun: it is undone or finished before anything else happens to the collection
//! ```
//!
//! The whole map is replaced at each change; readers keep the one they began with.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};
use nilometer_storage::{Direction, Durability, Engine, KeyspaceId, KeyspaceOptions, WriteBatch};

use super::moves::{DocumentMove, MovedDocuments, Passage};
use super::placement::{Chunk, HeldRange, Placement, Sharding};
use super::shard_key::{KeyBound, ShardKey};
use super::targets::KeyRange;
use crate::catalog::{Namespace, PLACEMENTS_KEYSPACE, TimeseriesOptions};
use crate::error::{Error, ErrorCode, Result};

/// The placements of all collections.
pub(crate) type PlacementMap = BTreeMap<Namespace, Arc<Placement>>;

/// The key of the number of the last change. No collection has such a name.
const LAST_VERSION_KEY: &[u8] = b"\0version";

/// The key of a move of documents begins so.
const MOVE_KEY: &str = "\0move:";

/// The stored placements.
pub(crate) struct Placements {
    engine: Arc<dyn Engine>,
    /// `None` in a view of a cluster without placements.
    keyspace: Option<KeyspaceId>,
    state: Mutex<PlacementsState>,
}

#[derive(Default)]
struct PlacementsState {
    map: Arc<PlacementMap>,
    /// The moves of documents that have begun.
    moves: BTreeMap<Namespace, DocumentMove>,
    /// The number of the last change.
    last_version: i64,
}

/// The partitions of a router by their names.
type PartitionNumbers<'n> = HashMap<&'n str, usize>;

impl Placements {
    /// Reads the stored placements. `options_of` returns the options of a time series.
    pub(crate) fn open(
        engine: Arc<dyn Engine>,
        partitions: &[String],
        options_of: impl Fn(&Namespace) -> Option<TimeseriesOptions>,
    ) -> Result<Self> {
        let all = engine.keyspaces();
        let keyspace = match all.iter().find(|known| known.name == PLACEMENTS_KEYSPACE) {
            Some(known) => Some(known.id),
            None if engine.is_read_only() => None,
            None => {
                let options = KeyspaceOptions::default();
                Some(engine.create_keyspace(PLACEMENTS_KEYSPACE, options)?)
            }
        };
        let mut state = PlacementsState::default();
        let mut map = PlacementMap::new();
        let partitions = partitions.iter().map(String::as_str).zip(0..).collect();
        if let Some(keyspace) = keyspace {
            let snapshot = engine.snapshot()?;
            for entry in snapshot.scan(keyspace, &[], None, Direction::Forward)? {
                let (key, value) = entry?;
                let stored = Document::from_bytes(value.to_vec()).ok_or_else(damaged)?;
                if key.as_ref() == LAST_VERSION_KEY {
                    let last = stored.get("number").as_exact_i64();
                    state.last_version = last.ok_or_else(damaged)?;
                    continue;
                }
                if key.starts_with(MOVE_KEY.as_bytes()) {
                    let moved = read_move(stored.as_ref(), &partitions)?;
                    state.moves.insert(moved.namespace.clone(), moved);
                    continue;
                }
                let (namespace, placement) = read(stored.as_ref(), &partitions, &options_of)?;
                map.insert(namespace, Arc::new(placement));
            }
        }
        state.map = Arc::new(map);
        Ok(Self {
            engine,
            keyspace,
            state: Mutex::new(state),
        })
    }

    fn lock(&self) -> MutexGuard<'_, PlacementsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if another router changes the placements.
    pub(crate) fn is_view(&self) -> bool {
        self.engine.is_read_only()
    }

    /// Returns the placements as they are now.
    pub(crate) fn now(&self) -> Arc<PlacementMap> {
        Arc::clone(&self.lock().map)
    }

    /// Returns the version that the next change gives a placement at least.
    pub(crate) fn next_version(&self) -> i64 {
        self.lock().last_version + 1
    }

    /// Stores the placement of a collection, then lets it be seen; `None` removes it. Its version is the next one, or
    /// `at_least` if that is greater. Fails while documents of the collection move.
    pub(crate) fn set(
        &self,
        namespace: &Namespace,
        placement: Option<Placement>,
        at_least: i64,
        partitions: &[String],
    ) -> Result<()> {
        let mut state = self.lock();
        if state.moves.contains_key(namespace) {
            return Err(Error::new(
                ErrorCode::ConflictingOperationInProgress,
                format!("documents of {namespace} move"),
            ));
        }
        self.store(&mut state, namespace, (placement, at_least), partitions)
    }

    /// Does so at the end of a move of documents, which the same batch forgets.
    pub(super) fn end_move(
        &self,
        namespace: &Namespace,
        placement: Option<Placement>,
        at_least: i64,
        partitions: &[String],
    ) -> Result<()> {
        let mut state = self.lock();
        self.store(&mut state, namespace, (placement, at_least), partitions)
    }

    fn store(
        &self,
        state: &mut PlacementsState,
        namespace: &Namespace,
        (mut placement, at_least): (Option<Placement>, i64),
        partitions: &[String],
    ) -> Result<()> {
        let keyspace = self.writable()?;
        let version = (state.last_version + 1).max(at_least);
        let key = namespace.to_string().into_bytes();
        let mut batch = WriteBatch::new();
        let last = doc! {"number": version};
        batch.put(keyspace, LAST_VERSION_KEY.to_vec(), last.into_bytes());
        if state.moves.contains_key(namespace) {
            batch.delete(keyspace, move_key(namespace));
        }
        match &mut placement {
            Some(placement) => {
                placement.version = version;
                let stored = written(namespace, placement, partitions);
                batch.put(keyspace, key, stored.into_bytes());
            }
            None => batch.delete(keyspace, key),
        }
        self.engine.commit(batch, Durability::Sync)?;
        let mut changed = PlacementMap::clone(&state.map);
        match placement {
            Some(placement) => changed.insert(namespace.clone(), Arc::new(placement)),
            None => changed.remove(namespace),
        };
        state.map = Arc::new(changed);
        state.moves.remove(namespace);
        state.last_version = version;
        Ok(())
    }

    /// Stores a move of documents, in the place of what was stored of it.
    pub(super) fn set_move(&self, moved: &DocumentMove, partitions: &[String]) -> Result<()> {
        let keyspace = self.writable()?;
        let mut state = self.lock();
        let mut batch = WriteBatch::new();
        let stored = written_move(moved, partitions);
        batch.put(keyspace, move_key(&moved.namespace), stored.into_bytes());
        self.engine.commit(batch, Durability::Sync)?;
        state.moves.insert(moved.namespace.clone(), moved.clone());
        Ok(())
    }

    /// Returns the move of documents of a collection.
    pub(super) fn move_of(&self, namespace: &Namespace) -> Option<DocumentMove> {
        self.lock().moves.get(namespace).cloned()
    }

    fn writable(&self) -> Result<KeyspaceId> {
        self.keyspace.filter(|_| !self.is_view()).ok_or_else(|| {
            Error::new(
                ErrorCode::NotWritablePrimary,
                "the placements of the cluster are changed by another router",
            )
        })
    }
}

fn move_key(namespace: &Namespace) -> Vec<u8> {
    format!("{MOVE_KEY}{namespace}").into_bytes()
}

/// Returns a move of documents as it is stored.
fn written_move(moved: &DocumentMove, partitions: &[String]) -> Document {
    let name = |partition: usize| partitions.get(partition).map_or("", String::as_str);
    let mut out = DocumentBuilder::new();
    out.append("_id", moved.namespace.to_string());
    out.append_ref(
        "uuid",
        ValueRef::Binary {
            subtype: 4,
            bytes: &moved.uuid,
        },
    );
    let (from, to) = match &moved.what {
        MovedDocuments::Range { passage, is_copied } => {
            out.append("min", passage.low.0.clone());
            out.append("max", passage.high.0.clone());
            out.append("copied", *is_copied);
            (passage.from, passage.to)
        }
        MovedDocuments::One {
            id,
            from,
            to,
            inserted_by,
        } => {
            out.append("document", id.clone());
            out.append("insertedBy", *inserted_by);
            (*from, *to)
        }
    };
    out.append("from", name(from));
    out.append("to", name(to));
    out.append("number", moved.version);
    out.append("at", moved.at_ms);
    out.finish()
}

/// Reads a stored move of documents.
fn read_move(stored: DocRef<'_>, partitions: &PartitionNumbers<'_>) -> Result<DocumentMove> {
    let from = number_of(stored.get("from"), partitions)?;
    let to = number_of(stored.get("to"), partitions)?;
    let what = match stored.get("document") {
        ValueRef::Missing => MovedDocuments::Range {
            passage: Passage {
                low: bound_of(stored.get("min"))?,
                high: bound_of(stored.get("max"))?,
                from,
                to,
            },
            is_copied: matches!(stored.get("copied"), ValueRef::Bool(true)),
        },
        id => MovedDocuments::One {
            id: id.to_value(),
            from,
            to,
            inserted_by: stored
                .get("insertedBy")
                .as_exact_i64()
                .ok_or_else(damaged)?,
        },
    };
    Ok(DocumentMove {
        namespace: namespace_of(stored)?,
        uuid: uuid_of(stored)?,
        what,
        version: stored.get("number").as_exact_i64().ok_or_else(damaged)?,
        at_ms: stored.get("at").as_exact_i64().ok_or_else(damaged)?,
    })
}

/// Reads the name of the collection that a stored document is about.
fn namespace_of(stored: DocRef<'_>) -> Result<Namespace> {
    let name = stored.get("_id").as_str();
    let name = name.and_then(|name| name.split_once('.'));
    let (database, collection) = name.ok_or_else(damaged)?;
    Namespace::new(database, collection)
}

/// Reads what identifies the collection that a stored document is about.
fn uuid_of(stored: DocRef<'_>) -> Result<[u8; 16]> {
    match stored.get("uuid") {
        ValueRef::Binary { bytes, .. } => bytes.try_into().map_err(|_| damaged()),
        _ => Err(damaged()),
    }
}

/// Returns a placement as it is stored.
fn written(namespace: &Namespace, placement: &Placement, partitions: &[String]) -> Document {
    let name = |partition: usize| partitions.get(partition).map_or("", String::as_str);
    let values = |bound: &KeyBound| Value::from(bound.0.clone());
    let mut out = DocumentBuilder::new();
    out.append("_id", namespace.to_string());
    out.append("primary", name(placement.primary));
    out.append_ref(
        "uuid",
        ValueRef::Binary {
            subtype: 4,
            bytes: &placement.uuid,
        },
    );
    out.append("placed", placement.version);
    if let Some(sharding) = &placement.sharding {
        out.append("key", sharding.key.written());
        out.append("version", sharding.version);
        out.append("moved", sharding.moved_ms);
        if sharding.is_unique {
            out.append("unique", true);
        }
        if sharding.is_exempt {
            out.append("noBalance", true);
        }
        let chunks = sharding.chunks.iter();
        let chunks = chunks.map(|chunk| {
            Value::from(doc! {"min": values(&chunk.min), "shard": name(chunk.partition)})
        });
        out.append("chunks", chunks.collect::<Vec<_>>());
        let history = sharding.history.iter().map(|held| {
            Value::from(doc! {
                "min": values(&held.range.low), "max": values(&held.range.high),
                "shard": name(held.partition), "since": held.since_ms,
            })
        });
        out.append("history", history.collect::<Vec<_>>());
        let anywhere = sharding.anywhere.iter().map(|p| Value::from(name(*p)));
        out.append("anywhere", anywhere.collect::<Vec<_>>());
    }
    out.finish()
}

/// Returns the partition that a stored name names.
fn number_of(name: ValueRef<'_>, partitions: &PartitionNumbers<'_>) -> Result<usize> {
    let name = name.as_str().ok_or_else(damaged)?;
    partitions.get(name).copied().ok_or_else(|| {
        Error::new(
            ErrorCode::ShardNotFound,
            format!("the partition {name} has documents, but is not there"),
        )
    })
}

/// Reads a stored bound.
fn bound_of(value: ValueRef<'_>) -> Result<KeyBound> {
    let values = value.as_array().ok_or_else(damaged)?;
    Ok(KeyBound(values.iter().map(ValueRef::to_value).collect()))
}

/// Reads a stored list of documents.
fn list_of(value: ValueRef<'_>) -> Result<Vec<Document>> {
    let values = value.as_array().ok_or_else(damaged)?;
    let documents = values
        .iter()
        .map(|v| v.as_document().map(|d| d.to_document()));
    documents.collect::<Option<_>>().ok_or_else(damaged)
}

/// Reads a stored placement.
fn read(
    stored: DocRef<'_>,
    partitions: &PartitionNumbers<'_>,
    options_of: impl Fn(&Namespace) -> Option<TimeseriesOptions>,
) -> Result<(Namespace, Placement)> {
    let namespace = namespace_of(stored)?;
    let sharding = match stored.get("key") {
        ValueRef::Document(key) => {
            let key = ShardKey::parse(key, options_of(&namespace).as_ref())?;
            Some(Arc::new(read_sharding(stored, key, partitions)?))
        }
        _ => None,
    };
    let placement = Placement {
        primary: number_of(stored.get("primary"), partitions)?,
        uuid: uuid_of(stored)?,
        // A placement of before there were versions is the oldest.
        version: stored.get("placed").as_exact_i64().unwrap_or(0),
        sharding,
    };
    Ok((namespace, placement))
}

/// Reads the chunks and the history of a stored placement.
fn read_sharding(
    stored: DocRef<'_>,
    key: ShardKey,
    partitions: &PartitionNumbers<'_>,
) -> Result<Sharding> {
    let mut chunks = Vec::new();
    for chunk in list_of(stored.get("chunks"))? {
        chunks.push(Chunk {
            min: bound_of(chunk.get("min"))?,
            partition: number_of(chunk.get("shard"), partitions)?,
        });
    }
    let is_whole = chunks
        .first()
        .is_some_and(|chunk| chunk.min == key.whole().0);
    if !is_whole {
        return Err(damaged());
    }
    let mut history = Vec::new();
    for entry in list_of(stored.get("history"))? {
        let range = KeyRange {
            low: bound_of(entry.get("min"))?,
            high: bound_of(entry.get("max"))?,
        };
        history.push(HeldRange {
            range,
            partition: number_of(entry.get("shard"), partitions)?,
            // An entry of before there were times has none.
            since_ms: entry.get("since").as_exact_i64().unwrap_or(0),
        });
    }
    let anywhere = stored.get("anywhere").as_array().ok_or_else(damaged)?;
    let anywhere = anywhere.iter().map(|name| number_of(name, partitions));
    Ok(Sharding {
        key,
        chunks,
        history,
        anywhere: anywhere.collect::<Result<_>>()?,
        is_unique: matches!(stored.get("unique"), ValueRef::Bool(true)),
        is_exempt: matches!(stored.get("noBalance"), ValueRef::Bool(true)),
        version: stored.get("version").as_exact_i64().ok_or_else(damaged)?,
        moved_ms: stored.get("moved").as_exact_i64().unwrap_or(0),
    })
}

fn damaged() -> Error {
    Error::new(
        ErrorCode::DataCorruptionDetected,
        "a stored placement is damaged",
    )
}
