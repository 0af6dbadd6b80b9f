//! A store with injected faults, chosen by a seed: late answers, errors, answers that are lost after the request took
//! effect, and stretches in which every request is refused.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use nilometer_storage::testing::random::Random;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    Result, UploadPart,
};

/// How many of a thousand requests have a fault, and which.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Requests that fail before they take effect.
    pub(crate) errors: u64,
    /// Requests that take effect and then fail.
    pub(crate) lost_replies: u64,
    /// Requests that begin a stretch in which all are refused.
    pub(crate) stretches: u64,
    /// Requests refused in a stretch.
    pub(crate) stretch_length: u64,
    /// Longest time until a request begins, in microseconds.
    pub(crate) latency_us: u64,
    /// Creating and replacing conditionally ignores the condition.
    pub(crate) ignores_conditions: bool,
    /// Conditions are refused.
    pub(crate) refuses_conditions: bool,
    /// Metadata of objects is not stored.
    pub(crate) drops_metadata: bool,
    /// Objects cannot be stored, in a way that repeating does not help.
    pub(crate) refuses_puts: bool,
    /// Nothing is permitted.
    pub(crate) permits_nothing: bool,
}

/// The faults of a store, which may change.
#[derive(Debug)]
pub(crate) struct FaultPlan {
    faults: Mutex<Faults>,
    random: Mutex<Random>,
    refused_left: AtomicU64,
    /// Requests until the process counts as killed: no later one is sent.
    left: AtomicU64,
    injected: AtomicU64,
}

/// What happens to a request.
enum Fate {
    Succeeds,
    Fails,
    LosesReply,
}

fn injected(what: &'static str) -> Error {
    Error::Generic {
        store: "faulty store",
        source: what.into(),
    }
}

impl FaultPlan {
    pub(crate) fn set(&self, faults: Faults) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
        self.refused_left.store(0, Ordering::Relaxed);
    }

    /// Sends this many requests more, and none after them.
    pub(crate) fn stop_after(&self, requests: u64) {
        self.left.store(requests, Ordering::Relaxed);
    }

    /// Returns how many requests had a fault.
    pub(crate) fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }

    fn faults(&self) -> Faults {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn below(&self, limit: u64) -> u64 {
        let random = self.random.lock();
        random.unwrap_or_else(PoisonError::into_inner).below(limit)
    }

    /// Waits, and decides about a request.
    async fn fate(&self) -> Result<Fate> {
        let faults = self.faults();
        if faults.latency_us > 0 {
            let wait = self.below(faults.latency_us);
            tokio::time::sleep(Duration::from_micros(wait)).await;
        }
        let left = self.left.load(Ordering::Relaxed);
        if left != u64::MAX {
            self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        }
        if faults.permits_nothing || left == 0 {
            return Err(Error::PermissionDenied {
                path: "all".to_owned(),
                source: "injected".into(),
            });
        }
        let left = self.refused_left.load(Ordering::Relaxed);
        if left > 0 {
            self.refused_left.store(left - 1, Ordering::Relaxed);
            return Ok(self.count(Fate::Fails));
        }
        let dice = self.below(1000);
        let (errors, replies) = (faults.errors, faults.errors + faults.lost_replies);
        Ok(if dice < errors {
            self.count(Fate::Fails)
        } else if dice < replies {
            self.count(Fate::LosesReply)
        } else if dice < replies + faults.stretches {
            self.refused_left
                .store(faults.stretch_length, Ordering::Relaxed);
            self.count(Fate::Fails)
        } else {
            Fate::Succeeds
        })
    }

    fn count(&self, fate: Fate) -> Fate {
        self.injected.fetch_add(1, Ordering::Relaxed);
        fate
    }

    /// Sends a request, or not.
    async fn send<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        match self.fate().await? {
            Fate::Succeeds => request.await,
            Fate::Fails => Err(injected("503 Slow Down")),
            Fate::LosesReply => {
                request.await?;
                Err(injected("the connection was closed"))
            }
        }
    }
}

/// The store.
#[derive(Debug)]
pub(crate) struct FaultyStore {
    inner: Arc<dyn ObjectStore>,
    plan: Arc<FaultPlan>,
}

impl FaultyStore {
    /// Returns `inner` with faults, and the plan by which they change.
    pub(crate) fn over(
        inner: Arc<dyn ObjectStore>,
        seed: u64,
        faults: Faults,
    ) -> (Arc<dyn ObjectStore>, Arc<FaultPlan>) {
        let plan = Arc::new(FaultPlan {
            faults: faults.into(),
            random: Random::new(seed).into(),
            refused_left: AtomicU64::new(0),
            left: AtomicU64::new(u64::MAX),
            injected: AtomicU64::new(0),
        });
        let store = Self {
            inner,
            plan: Arc::clone(&plan),
        };
        (Arc::new(store), plan)
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(formatter)
    }
}

#[async_trait::async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        let faults = self.plan.faults();
        if faults.refuses_puts || faults.refuses_conditions && options.mode != PutMode::Overwrite {
            return Err(Error::NotSupported {
                source: "injected".into(),
            });
        }
        if faults.ignores_conditions {
            options.mode = PutMode::Overwrite;
        }
        if faults.drops_metadata {
            options.attributes = object_store::Attributes::new();
        }
        let put = self.inner.put_opts(location, payload, options);
        self.plan.send(put).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let begin = self.inner.put_multipart_opts(location, options);
        let inner = self.plan.send(begin).await?;
        Ok(Box::new(FaultyUpload {
            inner,
            plan: Arc::clone(&self.plan),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let get = self.inner.get_opts(location, options);
        self.plan.send(get).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let get = self.inner.get_ranges(location, ranges);
        self.plan.send(get).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let (inner, plan) = (Arc::clone(&self.inner), Arc::clone(&self.plan));
        let one = move |location: Result<Path>| {
            let (inner, plan) = (Arc::clone(&inner), Arc::clone(&plan));
            async move {
                let one = futures::stream::iter([location]).boxed();
                let delete = inner.delete_stream(one);
                plan.send(delete.try_collect::<Vec<_>>()).await
            }
        };
        let deleted = locations.then(one);
        let each = |deleted: Vec<Path>| futures::stream::iter(deleted.into_iter().map(Ok));
        deleted.map_ok(each).try_flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        listed(Arc::clone(&self.plan), self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let plan = Arc::clone(&self.plan);
        listed(plan, self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let list = self.inner.list_with_delimiter(prefix);
        self.plan.send(list).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let copy = self.inner.copy_opts(from, to, options);
        self.plan.send(copy).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let rename = self.inner.rename_opts(from, to, options);
        self.plan.send(rename).await
    }
}

fn listed(
    plan: Arc<FaultPlan>,
    list: BoxStream<'static, Result<ObjectMeta>>,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let whole = async move { plan.send(list.try_collect::<Vec<_>>()).await };
    let each = |listed: Vec<ObjectMeta>| futures::stream::iter(listed.into_iter().map(Ok));
    futures::stream::once(whole)
        .map_ok(each)
        .try_flatten()
        .boxed()
}

/// An object that is stored in parts.
#[derive(Debug)]
struct FaultyUpload {
    inner: Box<dyn MultipartUpload>,
    plan: Arc<FaultPlan>,
}

#[async_trait::async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (part, plan) = (self.inner.put_part(data), Arc::clone(&self.plan));
        Box::pin(async move { plan.send(part).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.plan.send(self.inner.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.plan.send(self.inner.abort()).await
    }
}
