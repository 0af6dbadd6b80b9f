//! An object store that counts its requests and knows which are in flight.
//!
//! The counts are what a bill is made of. The requests in flight are what [`Engine::disk_waits`] reports, so that a store
//! that does not answer is noticed as a disk is. SlateDB repeats a request that failed until it succeeds; so an object whose
//! request failed counts as in flight from then on until a request for it ends otherwise.
//!
//! [`Engine::disk_waits`]: nilometer_storage::Engine::disk_waits

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use nilometer_storage::{DiskWait, DiskWaits};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
    UploadPart,
};

use crate::error::report;
use crate::lock::lock;

/// The folder of the log in a database of SlateDB.
pub(crate) const LOG_FOLDER: &str = "wal";

/// Requests since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Objects or parts of them stored, those of the log included.
    pub puts: u64,
    /// Objects of the log stored.
    pub log_puts: u64,
    /// Objects or ranges of them read.
    pub gets: u64,
    /// Listings.
    pub lists: u64,
    /// Objects deleted, copied and renamed.
    pub others: u64,
}

/// What is known about the requests of a store.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    puts: AtomicU64,
    log_puts: AtomicU64,
    gets: AtomicU64,
    lists: AtomicU64,
    others: AtomicU64,
    in_flight: Mutex<InFlight>,
}

/// Most failing objects that are remembered.
const FAILING_MAX: usize = 64;

#[derive(Debug, Default)]
struct InFlight {
    next: u64,
    started: BTreeMap<u64, (String, Instant)>,
    /// What could not be stored, by object: a number like that of a request, its report, and the time of its first failure.
    failing: BTreeMap<String, (u64, String, Instant)>,
    longest: Duration,
}

impl InFlight {
    fn next_id(&mut self) -> u64 {
        let id = self.next;
        self.next += 1;
        id
    }

    /// Notes how a request to store an object ended.
    fn note<T>(&mut self, path: &Path, outcome: &Result<T>) {
        let Err(error) = outcome.as_ref().map_err(|error| (error, may_pass(error))) else {
            self.end(path);
            return;
        };
        if !error.1 {
            self.end(path);
        } else if !self.failing.contains_key(path.as_ref()) && self.failing.len() < FAILING_MAX {
            let what = format!("put {path}, which fails: {}", report(error.0));
            let id = self.next_id();
            let failing = (id, what, Instant::now());
            self.failing.insert(path.to_string(), failing);
        }
    }

    fn end(&mut self, path: &Path) {
        if let Some((_, _, start)) = self.failing.remove(path.as_ref()) {
            self.longest = self.longest.max(start.elapsed());
        }
    }
}

/// True if SlateDB repeats a request that ended with this error.
fn may_pass(error: &Error) -> bool {
    !matches!(
        error,
        Error::AlreadyExists { .. }
            | Error::Precondition { .. }
            | Error::NotFound { .. }
            | Error::NotModified { .. }
            | Error::NotImplemented { .. }
            | Error::NotSupported { .. }
    )
}

impl Requests {
    /// Returns the counts.
    pub(crate) fn counts(&self) -> RequestCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RequestCounts {
            puts: read(&self.puts),
            log_puts: read(&self.log_puts),
            gets: read(&self.gets),
            lists: read(&self.lists),
            others: read(&self.others),
        }
    }

    /// Returns the requests in flight.
    pub(crate) fn waits(&self) -> DiskWaits {
        let requests = lock(&self.in_flight);
        let wait = |(id, what, start): (&u64, &String, &Instant)| DiskWait {
            id: *id,
            what: what.clone(),
            age: start.elapsed(),
        };
        let started = requests.started.iter();
        let started = started.map(|(id, (what, start))| wait((id, what, start)));
        let failing = requests.failing.values();
        let failing = failing.map(|(id, what, start)| wait((id, what, start)));
        let in_flight = started.chain(failing).collect::<Vec<_>>();
        let oldest = in_flight.iter().map(|wait| wait.age).max();
        DiskWaits {
            longest: requests.longest.max(oldest.unwrap_or_default()),
            in_flight,
        }
    }

    fn begin(self: &Arc<Self>, counter: &AtomicU64, verb: &str, path: Option<&Path>) -> Request {
        counter.fetch_add(1, Ordering::Relaxed);
        let mut requests = lock(&self.in_flight);
        let id = requests.next_id();
        let what = match path {
            Some(path) => format!("{verb} {path}"),
            None => verb.to_owned(),
        };
        requests.started.insert(id, (what, Instant::now()));
        Request {
            id,
            requests: Arc::clone(self),
        }
    }

    fn put(self: &Arc<Self>, path: &Path) -> Request {
        if path
            .parts()
            .rev()
            .nth(1)
            .is_some_and(|folder| folder.as_ref() == LOG_FOLDER)
        {
            self.log_puts.fetch_add(1, Ordering::Relaxed);
        }
        self.begin(&self.puts, "put", Some(path))
    }
}

/// A request in flight. It ends when the value is dropped.
struct Request {
    id: u64,
    requests: Arc<Requests>,
}

impl Drop for Request {
    fn drop(&mut self) {
        let mut requests = lock(&self.requests.in_flight);
        if let Some((_, start)) = requests.started.remove(&self.id) {
            requests.longest = requests.longest.max(start.elapsed());
        }
    }
}

/// The store.
#[derive(Debug)]
pub(crate) struct ObservedStore {
    inner: Arc<dyn ObjectStore>,
    requests: Arc<Requests>,
}

impl ObservedStore {
    /// Returns `inner`, observed by `requests`.
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, requests: Arc<Requests>) -> Self {
        Self { inner, requests }
    }
}

impl fmt::Display for ObservedStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(formatter)
    }
}

#[async_trait]
impl ObjectStore for ObservedStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let request = self.requests.put(location);
        let outcome = self.inner.put_opts(location, payload, options).await;
        drop(request);
        lock(&self.requests.in_flight).note(location, &outcome);
        outcome
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let _request = self.requests.put(location);
        let inner = self.inner.put_multipart_opts(location, options).await?;
        Ok(Box::new(ObservedUpload {
            inner,
            location: location.clone(),
            requests: Arc::clone(&self.requests),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let _request = self
            .requests
            .begin(&self.requests.gets, "get", Some(location));
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let _request = self
            .requests
            .begin(&self.requests.gets, "get", Some(location));
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let requests = Arc::clone(&self.requests);
        let counted = locations.inspect(move |_| {
            requests.others.fetch_add(1, Ordering::Relaxed);
        });
        self.inner.delete_stream(counted.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let request = self.requests.begin(&self.requests.lists, "list", prefix);
        let listed = self.inner.list(prefix);
        listed.inspect(move |_| _ = &request).boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let request = self.requests.begin(&self.requests.lists, "list", prefix);
        let listed = self.inner.list_with_offset(prefix, offset);
        listed.inspect(move |_| _ = &request).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let _request = self.requests.begin(&self.requests.lists, "list", prefix);
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let _request = self
            .requests
            .begin(&self.requests.others, "copy", Some(from));
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let _request = self
            .requests
            .begin(&self.requests.others, "rename", Some(from));
        self.inner.rename_opts(from, to, options).await
    }
}

/// An object that is stored in parts.
#[derive(Debug)]
struct ObservedUpload {
    inner: Box<dyn MultipartUpload>,
    location: Path,
    requests: Arc<Requests>,
}

#[async_trait]
impl MultipartUpload for ObservedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let request = self.requests.put(&self.location);
        let part = self.inner.put_part(data);
        Box::pin(async move {
            let _request = request;
            part.await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let _request = self.requests.put(&self.location);
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        let _request = self
            .requests
            .begin(&self.requests.others, "abort", Some(&self.location));
        self.inner.abort().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_whose_requests_fail_is_in_flight_until_one_ends_otherwise() {
        let requests = Arc::new(Requests::default());
        let path = Path::from("db/wal/1.sst");
        let failure = || {
            Err::<(), _>(Error::Generic {
                store: "S3",
                source: "503 Slow Down".into(),
            })
        };
        let note = |outcome: Result<()>| lock(&requests.in_flight).note(&path, &outcome);
        note(failure());
        let first = requests.waits().in_flight;
        assert!(first[0].what.contains("db/wal/1.sst") && first[0].what.contains("503"));
        note(failure());
        let again = requests.waits().in_flight;
        assert_eq!((again.len(), again[0].id), (1, first[0].id));
        note(Ok(()));
        assert_eq!(requests.waits().in_flight, []);
        note(failure());
        note(Err(Error::AlreadyExists {
            path: path.to_string(),
            source: "it does".into(),
        }));
        assert_eq!(requests.waits().in_flight, []);
        for number in 0..2 * FAILING_MAX {
            let path = Path::from(format!("db/wal/{number}.sst"));
            lock(&requests.in_flight).note(&path, &failure());
        }
        assert_eq!(requests.waits().in_flight.len(), FAILING_MAX);
    }
}
