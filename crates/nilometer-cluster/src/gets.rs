//! Reads of several keys at a time.

use bytes::Bytes as StoredBytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use nilometer_storage::{Bytes, KeyspaceId};
use slatedb::DbReadOps;

use crate::layout;

/// Keys that are read at a time. Each may wait for the store.
const READS: usize = 16;

/// Returns the values of keys of a keyspace, in their order.
pub(crate) async fn get_all(
    source: &(impl DbReadOps + Sync),
    keyspace: KeyspaceId,
    keys: &[&[u8]],
) -> Result<Vec<Option<Bytes>>, slatedb::Error> {
    let reads = keys.iter().map(|key| {
        let stored = layout::possible_key(keyspace, key);
        async move {
            match stored {
                Some(stored) => source.get(stored).await,
                None => Ok(None),
            }
        }
    });
    // Copied, so that a cached value does not keep its block in memory.
    let own = |value: Option<StoredBytes>| value.map(|value| Bytes::copy_from(&value));
    let values = stream::iter(reads).buffered(READS).map_ok(own);
    values.try_collect().await
}
