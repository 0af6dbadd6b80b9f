//! The virtual collections of the database `config` that describe a cluster, as `sh.status()` reads them.

use nilometer_bson::{Document, DocumentBuilder, ObjectId, Timestamp, Value, ValueRef, doc};

use super::Router;
use super::placement::{Placement, Sharding};
use crate::catalog::Namespace;

/// The version of the stored description that MongoDB 8.0 has.
const CONFIG_VERSION: i32 = 6;

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
            // Nothing moves by itself, and no chunk is split.
            "settings" => vec![
                doc! {"_id": "balancer", "stopped": true, "mode": "off"},
                doc! {"_id": "autosplit", "enabled": false},
            ],
            "mongos" => self.mongos(version),
            "tags" | "changelog" => Vec::new(),
            "version" => vec![doc! {
                "_id": 1, "clusterId": Value::ObjectId(self.cluster_id()), "currentVersion": CONFIG_VERSION,
            }],
            _ => return None,
        })
    }

    /// Describes a partition as a shard.
    pub(crate) fn shard(&self, partition: usize) -> Document {
        doc! {"_id": self.name(partition), "host": self.host(partition), "state": 1}
    }

    fn cluster_id(&self) -> ObjectId {
        let coordinator = self.coordinator.as_ref();
        coordinator.map_or(ObjectId([0; 12]), |coordinator| coordinator.cluster_id())
    }

    /// The routers of the cluster; none if this is the only one.
    fn mongos(&self, version: &str) -> Vec<Document> {
        let coordinator = self.coordinator.as_ref();
        let routers = coordinator.map_or_else(Vec::new, |coordinator| coordinator.routers());
        let describe = |(host, seen_ms): (String, i64)| {
            doc! {
                "_id": host, "ping": Value::DateTime(seen_ms), "waiting": true,
                "mongoVersion": version,
            }
        };
        routers.into_iter().map(describe).collect()
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
    out.append("noBalance", false);
    out.append("timestamp", version(sharding));
    out.finish()
}

fn version(sharding: &Sharding) -> Value {
    let number = u64::try_from(sharding.version).unwrap_or(0);
    Value::Timestamp(Timestamp::from_u64(number << 32))
}

fn uuid(placement: &Placement) -> ValueRef<'_> {
    ValueRef::Binary {
        subtype: 4,
        bytes: &placement.uuid,
    }
}
