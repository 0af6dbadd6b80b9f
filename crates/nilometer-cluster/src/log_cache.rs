//! An object store that keeps the objects of the log in memory once they were read.
//!
//! Each view of a reader reads the log since the last table again (see [`crate::reader`]). Objects of the log never change,
//! so those that an earlier view has read are not requested again.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    Result,
};

use crate::lock::lock;
use crate::requests::LOG_FOLDER;

/// Bytes of objects in memory. The log since the last table is about this much; the oldest objects leave first.
const LOG_CACHE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The store.
#[derive(Debug)]
pub(crate) struct LogCache {
    inner: Arc<dyn ObjectStore>,
    objects: Mutex<LogObjects>,
}

#[derive(Debug, Default)]
struct LogObjects {
    /// By path, which is the order of the log.
    by_path: BTreeMap<Path, (ObjectMeta, Bytes)>,
    bytes: usize,
}

impl LogCache {
    /// Returns `inner` with an empty cache.
    pub(crate) fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self {
            inner,
            objects: Mutex::default(),
        }
    }

    /// Returns an object of the log.
    async fn object(&self, location: &Path) -> Result<(ObjectMeta, Bytes)> {
        if let Some(known) = lock(&self.objects).by_path.get(location) {
            return Ok(known.clone());
        }
        let found = self.inner.get_opts(location, GetOptions::default()).await?;
        let meta = found.meta.clone();
        let bytes = found.bytes().await?;
        let mut objects = lock(&self.objects);
        objects.bytes += bytes.len();
        let entry = (meta, bytes);
        if let Some((_, before)) = objects.by_path.insert(location.clone(), entry.clone()) {
            objects.bytes -= before.len();
        }
        while objects.bytes > LOG_CACHE_BYTES_MAX {
            let Some((_, (_, oldest))) = objects.by_path.pop_first() else {
                break;
            };
            objects.bytes -= oldest.len();
        }
        Ok(entry)
    }
}

/// True if an object is one of the log, and the request asks for it whatever it is.
fn is_of_log(location: &Path, options: &GetOptions) -> bool {
    let mut parts = location.parts().rev().skip(1);
    let is_in_folder = parts
        .next()
        .is_some_and(|folder| folder.as_ref() == LOG_FOLDER);
    let is_plain = options.if_match.is_none()
        && options.if_none_match.is_none()
        && options.if_modified_since.is_none()
        && options.if_unmodified_since.is_none()
        && options.version.is_none();
    is_in_folder && is_plain
}

/// Returns the part of `bytes` that a request asks for; `None` if it is none.
fn part(range: Option<&GetRange>, bytes: &Bytes) -> Option<Range<u64>> {
    let length = bytes.len() as u64;
    match range {
        None => Some(0..length),
        Some(GetRange::Bounded(range)) => {
            let end = range.end.min(length);
            (range.start < end).then_some(range.start..end)
        }
        Some(GetRange::Offset(start)) => (*start < length).then_some(*start..length),
        Some(GetRange::Suffix(bytes)) => Some(length.saturating_sub(*bytes)..length),
    }
}

impl fmt::Display for LogCache {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(formatter)
    }
}

#[async_trait]
impl ObjectStore for LogCache {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if !is_of_log(location, &options) {
            return self.inner.get_opts(location, options).await;
        }
        let is_known = lock(&self.objects).by_path.contains_key(location);
        if options.head && !is_known {
            return self.inner.get_opts(location, options).await;
        }
        let (meta, bytes) = self.object(location).await?;
        let Some(range) = part(options.range.as_ref(), &bytes) else {
            // The store's own error.
            return self.inner.get_opts(location, options).await;
        };
        let (start, end) = (usize::try_from(range.start), usize::try_from(range.end));
        let found = match (options.head, start, end) {
            (false, Ok(start), Ok(end)) => bytes.slice(start..end),
            _ => Bytes::new(),
        };
        let payload = futures::stream::once(async move { Ok(found) }).boxed();
        Ok(GetResult {
            payload: GetResultPayload::Stream(payload),
            meta,
            range,
            attributes: Default::default(),
            extensions: Default::default(),
        })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if !is_of_log(location, &GetOptions::default()) {
            return self.inner.get_ranges(location, ranges).await;
        }
        let (_, bytes) = self.object(location).await?;
        let cut = |range: &Range<u64>| {
            let range = part(Some(&GetRange::Bounded(range.clone())), &bytes)?;
            let (start, end) = (usize::try_from(range.start), usize::try_from(range.end));
            Some(bytes.slice(start.ok()?..end.ok()?))
        };
        match ranges.iter().map(cut).collect() {
            Some(parts) => Ok(parts),
            None => self.inner.get_ranges(location, ranges).await,
        }
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

    use super::*;
    use crate::requests::{ObservedStore, Requests};

    #[tokio::test]
    async fn objects_of_the_log_are_requested_once() {
        let requests = Arc::new(Requests::default());
        let inner = ObservedStore::new(Arc::new(InMemory::new()), requests.clone());
        let cache = LogCache::new(Arc::new(inner));
        let (log, table) = (Path::from("db/wal/1.sst"), Path::from("db/compacted/1.sst"));
        for path in [&log, &table] {
            cache
                .put(path, b"0123456789".as_slice().into())
                .await
                .unwrap();
        }
        for _ in 0..3 {
            assert_eq!(&cache.get_range(&log, 2..5).await.unwrap()[..], b"234");
            assert_eq!(&cache.get_range(&log, 8..20).await.unwrap()[..], b"89");
            let all = cache.get(&log).await.unwrap();
            assert_eq!(all.meta.size, 10);
            assert_eq!(&all.bytes().await.unwrap()[..], b"0123456789");
            assert_eq!(cache.head(&log).await.unwrap().size, 10);
            let suffix = GetOptions {
                range: Some(GetRange::Suffix(3)),
                ..GetOptions::default()
            };
            let last = cache.get_opts(&log, suffix).await.unwrap();
            assert_eq!(
                (last.range.clone(), &last.bytes().await.unwrap()[..]),
                (7..10, &b"789"[..])
            );
        }
        assert_eq!(requests.counts().gets, 1);
        assert!(cache.get_range(&log, 12..20).await.is_err());
        assert!(cache.get(&Path::from("db/wal/2.sst")).await.is_err());
        assert_eq!(&cache.get_range(&table, 2..5).await.unwrap()[..], b"234");
        assert_eq!(requests.counts().gets, 4);
    }
}
