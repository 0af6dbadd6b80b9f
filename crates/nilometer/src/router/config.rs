//! The virtual collections of the database `config` that describe a cluster, as `sh.status()` reads them.

use nilometer_bson::{Document, DocumentBuilder, ObjectId, Timestamp, Value, ValueRef, doc};

use super::Router;
use super::placement::{Placement, Sharding};
use super::report::{RouterReport, Tenure};
use crate::catalog::Namespace;

/// The version of the stored description that MongoDB 8.0 has.
const CONFIG_VERSION: i32 = 6;

/// The settings of the balancer until somebody changes them. Clients take one that is not there for one that is on.
pub(crate) fn default_settings() -> [Document; 3] {
    [
        doc! {"_id": "balancer", "stopped": true, "mode": "off"},
        doc! {"_id": "autosplit", "enabled": false},
        doc! {"_id": "automerge", "enabled": false},
    ]
}

impl Router {
    /// Returns the documents of `config.<name>`; `None` if a router has no such collection. `version` is that of the routers.
    pub(crate) fn config_documents(&self, name: &str, version: &str) -> Option<Vec<Document>> {
        Some(match name {
            "shards" => (0..self.count()).map(|shard| self.shard(shard)).collect(),
            "databases" => self.databases(),
            "collections" => self.of_sharded(|namespace, placement, sharding| {
                vec![collection(namespace, placement, sharding)]
            }),
            "chunks" => self.of_sharded(|_, placement, sharding| self.chunks(placement, sharding)),
            // Until somebody has changed the settings.
            "settings" => default_settings().into(),
            "mongos" => self.mongos(version),
            "actionlog" | "tags" => Vec::new(),
            "changelog" => self.changelog(),
            "version" => vec![doc! {
                "_id": 1, "clusterId": Value::ObjectId(self.cluster_id()), "currentVersion": CONFIG_VERSION,
            }],
            _ => return None,
        })
    }

    /// Describes a partition as a shard, with the turn of the process that writes it.
    pub(crate) fn shard(&self, partition: usize) -> Document {
        let mut out = DocumentBuilder::new();
        out.append("_id", self.name(partition));
        out.append("host", self.host(partition));
        out.append("state", 1);
        if let Some(tenure) = self.tenure(partition) {
            out.append("term", i64::try_from(tenure.term).unwrap_or(i64::MAX));
            out.append("since", Value::DateTime(tenure.since_ms));
        }
        out.finish()
    }

    fn tenure(&self, partition: usize) -> Option<Tenure> {
        self.partitions.get(partition)?.tenure()
    }

    fn cluster_id(&self) -> ObjectId {
        let coordinator = self.coordinator.as_ref();
        coordinator.map_or(ObjectId([0; 12]), |coordinator| coordinator.cluster_id())
    }

    /// The routers of the cluster; none if this is the only one.
    fn mongos(&self, version: &str) -> Vec<Document> {
        let coordinator = self.coordinator.as_ref();
        let routers = coordinator.map_or_else(Vec::new, |coordinator| coordinator.routers());
        let describe = |report: RouterReport| {
            let up = report.seen_ms.saturating_sub(report.since_ms).max(0) / 1000;
            doc! {
                "_id": report.host, "created": Value::DateTime(report.since_ms),
                "ping": Value::DateTime(report.seen_ms), "up": up, "waiting": true,
                "mongoVersion": version, "noPartitions": report.only_routes,
            }
        };
        routers.into_iter().map(describe).collect()
    }

    /// What was assigned to other partitions, and which of them other processes took, by time.
    fn changelog(&self) -> Vec<Document> {
        let mut entries = Vec::new();
        for (namespace, placement) in &*self.placements() {
            let Some(sharding) = &placement.sharding else {
                continue;
            };
            for range in sharding.moves() {
                let mut details = DocumentBuilder::new();
                details.append("min", sharding.key.shown(range.low));
                details.append("max", sharding.key.shown(range.high));
                // MongoDB moves a range from one shard.
                if let (1, Some(from)) = (range.from.len(), range.from.first()) {
                    details.append("from", self.name(*from));
                }
                details.append("to", self.name(range.to));
                let of = sharding.key.namespace(namespace);
                let details = details.finish();
                entries.push((range.at_ms, "moveChunk.commit", of.clone(), details.clone()));
                // By this one clients count what has moved.
                let mut done = DocumentBuilder::extending(details);
                done.append("note", "success");
                entries.push((range.at_ms, "moveChunk.from", of, done.finish()));
            }
        }
        let coordinator = self.coordinator.as_ref();
        let moves = coordinator.map_or_else(Vec::new, |coordinator| coordinator.moves());
        for moved in moves {
            let term = i64::try_from(moved.tenure.term).unwrap_or(i64::MAX);
            let details = doc! {"from": moved.from, "to": moved.to, "term": term};
            let at_ms = moved.tenure.since_ms;
            entries.push((at_ms, "partition.move", moved.partition, details));
        }
        entries.sort_by_key(|(at_ms, ..)| *at_ms);
        let numbered = (0_i64..).zip(entries);
        let describe = |(number, (at_ms, what, of, details))| {
            doc! {
                "_id": number, "time": Value::DateTime(at_ms), "what": what, "ns": of,
                "details": details,
            }
        };
        numbered.map(describe).collect()
    }

    fn databases(&self) -> Vec<Document> {
        let map = self.placements();
        let mut out: Vec<Document> = Vec::new();
        for (namespace, placement) in map.iter() {
            let is_known = out
                .iter()
                .any(|known| known.get("_id").as_str() == Some(namespace.database.as_str()));
            if !is_known {
                out.push(doc! {
                    "_id": namespace.database.as_str(), "primary": self.name(placement.primary),
                    "partitioned": true,
                });
            }
        }
        out
    }

    fn of_sharded(
        &self,
        describe: impl Fn(&Namespace, &Placement, &Sharding) -> Vec<Document>,
    ) -> Vec<Document> {
        let map = self.placements();
        let sharded = map.iter().filter_map(|(namespace, placement)| {
            Some((namespace, placement, placement.sharding.as_ref()?))
        });
        sharded
            .flat_map(|(namespace, placement, sharding)| describe(namespace, placement, sharding))
            .collect()
    }

    fn chunks(&self, placement: &Placement, sharding: &Sharding) -> Vec<Document> {
        let histories = sharding.chunk_histories();
        let describe = |at: usize| {
            let chunk = sharding.chunks.get(at)?;
            let mut out = DocumentBuilder::new();
            let mut id = [0; 12];
            if let (Some(of), Ok(number)) = (placement.uuid.get(..8), u32::try_from(at)) {
                id[..8].copy_from_slice(of);
                id[8..].copy_from_slice(&number.to_be_bytes());
            }
            out.append("_id", Value::ObjectId(ObjectId(id)));
            out.append_ref("uuid", uuid(placement));
            out.append("min", sharding.key.shown(&chunk.min));
            out.append("max", sharding.key.shown(&sharding.max_of(at)));
            out.append("shard", self.name(chunk.partition));
            out.append("lastmod", version(sharding));
            let known = histories.get(at).map_or(&[][..], Vec::as_slice);
            if let Some((_, since_ms)) = known.last() {
                out.append("onCurrentShardSince", timestamp(*since_ms));
            }
            // The latest first.
            let history = known.iter().rev().map(|(partition, since_ms)| {
                let since = timestamp(*since_ms);
                Value::from(doc! {"validAfter": since, "shard": self.name(*partition)})
            });
            out.append("history", history.collect::<Vec<_>>());
            Some(out.finish())
        };
        (0..sharding.chunks.len()).filter_map(describe).collect()
    }
}

fn collection(namespace: &Namespace, placement: &Placement, sharding: &Sharding) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("_id", sharding.key.namespace(namespace));
    out.append_ref("uuid", uuid(placement));
    out.append("key", sharding.key.stored());
    out.append("unique", sharding.is_unique);
    out.append("noBalance", sharding.is_exempt);
    out.append("timestamp", version(sharding));
    out.finish()
}

/// Returns the version of how a collection is divided, as clients see it.
pub(crate) fn version(sharding: &Sharding) -> Value {
    let number = u64::try_from(sharding.version).unwrap_or(0);
    Value::Timestamp(Timestamp::from_u64(number << 32))
}

/// Returns the timestamp of a time in ms since 1970.
fn timestamp(ms: i64) -> Value {
    let seconds = u64::try_from(ms / 1000).unwrap_or(0);
    Value::Timestamp(Timestamp::from_u64(seconds << 32))
}

fn uuid(placement: &Placement) -> ValueRef<'_> {
    ValueRef::Binary {
        subtype: 4,
        bytes: &placement.uuid,
    }
}
