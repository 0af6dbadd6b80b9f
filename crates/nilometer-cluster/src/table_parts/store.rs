//! An object store that reads tables in parts, and leaves its requests to the threads of the engine.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::future::join_all;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, Result,
};
use slatedb::object_store_tag::{ObjectStoreCallTag, SstType, TableStoreKind};
use tokio::runtime::{Handle, RuntimeFlavor};

use super::upload::KeptUpload;
use super::{Part, PartKey, Source, TableParts, parts_of};
use crate::caller_runtime::count_store_read;

/// The store.
#[derive(Clone, Debug)]
pub(crate) struct TableStore {
    inner: Arc<dyn ObjectStore>,
    engine: Handle,
    parts: Arc<TableParts>,
}

impl TableStore {
    /// Returns `inner`, whose requests run on the threads of `engine`, with `parts` of its tables.
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, engine: Handle, parts: Arc<TableParts>) -> Self {
        Self {
            inner,
            engine,
            parts,
        }
    }

    /// True if this is the thread of a caller, which may wait for a disk and cannot wait for a socket.
    fn is_on_caller(&self) -> bool {
        Handle::try_current().is_ok_and(|current| {
            current.runtime_flavor() == RuntimeFlavor::CurrentThread
                && current.id() != self.engine.id()
        })
    }

    /// Runs a request on a thread of the engine.
    async fn request<T: Send + 'static>(
        &self,
        request: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        if !self.is_on_caller() {
            return request.await;
        }
        count_store_read();
        let done = self.engine.spawn(request).await;
        done.map_err(|source| Error::Generic {
            store: "threads of the engine",
            source: Box::new(source),
        })?
    }

    /// Asks the store for what the options say.
    async fn get_past_parts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (inner, location) = (Arc::clone(&self.inner), location.clone());
        if !self.is_on_caller() {
            return inner.get_opts(&location, options).await;
        }
        self.request(async move {
            let found = inner.get_opts(&location, options).await?;
            let (meta, range) = (found.meta.clone(), found.range.clone());
            let (attributes, extensions) = (found.attributes.clone(), found.extensions.clone());
            // The bytes come through the engine's connections, too.
            let bytes = found.bytes().await;
            Ok(GetResult {
                payload: GetResultPayload::Stream(stream::iter([bytes]).boxed()),
                meta,
                range,
                attributes,
                extensions,
            })
        })
        .await
    }

    /// Returns bytes of a part; `None` if they cannot be read.
    async fn part(&self, key: PartKey, range: Range<usize>, options: &GetOptions) -> Option<Part> {
        if let Some(part) = self.parts.in_memory_part(&key, &range) {
            return Some(part);
        }
        if let Some(files) = &self.parts.files {
            let found = match self.is_on_caller() {
                true => files.read(&key, &range),
                false => files.read_elsewhere(key.clone(), range.clone()).await,
            };
            if found.is_some() {
                return found;
            }
        }
        if self.is_on_caller() {
            count_store_read();
        }
        let source = Source {
            store: &self.inner,
            runtime: &self.engine,
            extensions: &options.extensions,
        };
        self.parts.fetch(&key, &source).await?.slice(&range)
    }

    /// Returns a range of a table; `None` if it cannot be read.
    async fn range(
        &self,
        location: &Path,
        range: &Range<u64>,
        options: &GetOptions,
    ) -> Option<Part> {
        let parts = parts_of(range).map(|(number, range)| {
            let key = PartKey {
                table: location.clone(),
                number,
            };
            self.part(key, range, options)
        });
        let mut parts = join_all(parts).await.into_iter();
        let first = parts.next()??;
        if parts.len() == 0 {
            return Some(first);
        }
        let mut bytes = BytesMut::from(first.bytes);
        for part in parts {
            bytes.extend_from_slice(&part?.bytes);
        }
        Some(Part {
            bytes: bytes.freeze(),
            table_bytes: first.table_bytes,
        })
    }
}

/// Returns the range that a read of a table asks for, if it may be answered from parts, and whether it must not be.
fn table_range(options: &GetOptions) -> Option<(Range<u64>, bool)> {
    let tag = ObjectStoreCallTag::from_extensions(&options.extensions)?;
    let is_kept = tag.sst_type == SstType::Compacted
        && matches!(tag.kind, TableStoreKind::Main | TableStoreKind::Reader);
    let is_plain = !options.head
        && options.if_match.is_none()
        && options.if_none_match.is_none()
        && options.if_modified_since.is_none()
        && options.if_unmodified_since.is_none()
        && options.version.is_none();
    match &options.range {
        Some(GetRange::Bounded(range)) if is_kept && is_plain && range.start < range.end => {
            Some((range.clone(), tag.retry.is_some()))
        }
        _ => None,
    }
}

/// True if what is stored is a table.
fn is_table(extensions: &object_store::Extensions) -> bool {
    ObjectStoreCallTag::from_extensions(extensions)
        .is_some_and(|tag| tag.sst_type == SstType::Compacted)
}

impl fmt::Display for TableStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(formatter)
    }
}

#[async_trait]
impl ObjectStore for TableStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let kept = is_table(&options.extensions).then(|| payload.clone());
        let result = self.inner.put_opts(location, payload, options).await?;
        if let Some(payload) = kept {
            self.parts
                .keep_written(location, payload, &self.engine)
                .await;
        }
        Ok(result)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let is_table = is_table(&options.extensions);
        let upload = self.inner.put_multipart_opts(location, options).await?;
        Ok(match &self.parts.files {
            Some(files) if is_table => {
                let writer = files.writer(location, self.engine.clone());
                Box::new(KeptUpload::new(upload, writer))
            }
            _ => upload,
        })
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let Some((range, is_repeated)) = table_range(&options) else {
            return self.get_past_parts(location, options).await;
        };
        if is_repeated {
            for (number, _) in parts_of(&range) {
                self.parts.remove(&PartKey {
                    table: location.clone(),
                    number,
                });
            }
            return self.get_past_parts(location, options).await;
        }
        let Some(Part { bytes, table_bytes }) = self.range(location, &range, &options).await else {
            // The store's own error.
            return self.get_past_parts(location, options).await;
        };
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::iter([Ok(bytes)]).boxed()),
            // SlateDB, which alone asks like this, looks at the size alone.
            meta: ObjectMeta {
                location: location.clone(),
                last_modified: Default::default(),
                size: table_bytes,
                e_tag: None,
                version: None,
            },
            range,
            attributes: Default::default(),
            extensions: Default::default(),
        })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (inner, location) = (Arc::clone(&self.inner), location.clone());
        let ranges = ranges.to_vec();
        self.request(async move { inner.get_ranges(&location, &ranges).await })
            .await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;
    use slatedb::object_store_tag::RetryReason;

    use super::super::PART_BYTES;
    use super::*;
    use crate::caller_runtime::CallerRuntimes;
    use crate::engine::runtime;
    use crate::requests::{ObservedStore, Requests};

    /// A table of two and a half parts.
    fn table() -> (Path, Bytes) {
        let bytes = (0..PART_BYTES * 5 / 2).map(|n| (n % 251) as u8);
        (Path::from("db/compacted/t.sst"), bytes.collect())
    }

    fn observed() -> (Arc<dyn ObjectStore>, Arc<Requests>) {
        let requests = Arc::new(Requests::default());
        let store = ObservedStore::new(Arc::new(InMemory::new()), requests.clone());
        (Arc::new(store), requests)
    }

    fn tag(kind: TableStoreKind) -> ObjectStoreCallTag {
        ObjectStoreCallTag::new(kind, SstType::Compacted)
    }

    async fn read(store: &TableStore, range: Range<u64>, tag: ObjectStoreCallTag) -> Result<Bytes> {
        let options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            extensions: tag.into(),
            ..GetOptions::default()
        };
        let found = store.get_opts(&table().0, options).await?;
        assert!(found.range.start == range.start && found.meta.size == table().1.len() as u64);
        found.bytes().await
    }

    fn cut(bytes: &Bytes, range: &Range<u64>) -> Bytes {
        bytes.slice(range.start as usize..range.end as usize)
    }

    #[test]
    fn a_part_is_requested_once_from_any_thread() {
        let engine = runtime("db", 2).unwrap();
        let ((path, bytes), (inner, requests)) = (table(), observed());
        engine
            .block_on(inner.put(&path, bytes.clone().into()))
            .unwrap();
        let parts = Arc::new(TableParts::in_memory(8 * PART_BYTES));
        let store = TableStore::new(inner, engine.handle().clone(), parts);
        let callers = CallerRuntimes::new(engine.handle().clone(), "db");
        let main = || tag(TableStoreKind::Main);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let range = 5..PART_BYTES + 100;
                    let found = callers.take().block_on(read(&store, range.clone(), main()));
                    assert_eq!(found.unwrap(), cut(&bytes, &range));
                });
            }
        });
        assert_eq!(requests.counts().gets, 2);
        let caller = callers.take();
        let reads = caller.store_reads();
        let all = 0..bytes.len() as u64;
        let found = caller.block_on(read(&store, all.clone(), main()));
        assert_eq!(found.unwrap(), bytes);
        assert_eq!(
            caller.store_reads(),
            reads.map(|reads| reads + 1),
            "the third part"
        );
        let found = engine.block_on(read(&store, all.clone(), tag(TableStoreKind::Reader)));
        assert_eq!((found.unwrap(), requests.counts().gets), (bytes.clone(), 3));
        // Merges read once, and their parts are not kept.
        let found = engine.block_on(read(&store, all.clone(), tag(TableStoreKind::Compactor)));
        assert_eq!((found.unwrap(), requests.counts().gets), (bytes.clone(), 4));
        // The errors are those of the store.
        let beyond = all.end..all.end + 5;
        assert!(caller.block_on(read(&store, beyond, main())).is_err());
        let missing = caller.block_on(store.get_range(&Path::from("db/compacted/u.sst"), 0..5));
        assert!(
            matches!(missing, Err(Error::NotFound { .. })),
            "{missing:?}"
        );
    }

    #[test]
    fn a_damaged_part_is_read_again_from_the_store() {
        let engine = runtime("db", 2).unwrap();
        let folder = std::env::temp_dir();
        let folder = folder.join(format!("nilometer-damaged-part-{}", std::process::id()));
        let ((path, bytes), (inner, requests)) = (table(), observed());
        // Nothing fits into memory.
        let parts = TableParts::in_folder(0, &folder, 8 * PART_BYTES).unwrap();
        let store = TableStore::new(inner, engine.handle().clone(), Arc::new(parts));
        let written = PutOptions {
            extensions: tag(TableStoreKind::Main).into(),
            ..PutOptions::default()
        };
        engine
            .block_on(store.put_opts(&path, bytes.clone().into(), written))
            .unwrap();
        let range = PART_BYTES..PART_BYTES + 9;
        let main = || tag(TableStoreKind::Main);
        let found = engine.block_on(read(&store, range.clone(), main()));
        assert_eq!(
            (found.unwrap(), requests.counts().gets),
            (cut(&bytes, &range), 0)
        );
        let name = format!("000000001.{}", bytes.len());
        let file = folder.join("db/compacted/t.sst").join(name);
        let mut damaged = std::fs::read(&file).unwrap();
        damaged[3] ^= 1;
        std::fs::write(&file, damaged).unwrap();
        let found = engine.block_on(read(&store, range.clone(), main()));
        assert_ne!(found.unwrap(), cut(&bytes, &range));
        let mut again = main();
        again.retry = Some(RetryReason::CrcMismatch);
        for tag in [again, main(), main()] {
            let found = engine.block_on(read(&store, range.clone(), tag));
            assert_eq!(found.unwrap(), cut(&bytes, &range));
        }
        // Past the parts, and for the part.
        assert_eq!(requests.counts().gets, 2);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
