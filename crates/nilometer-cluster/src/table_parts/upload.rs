//! The upload of a table whose parts are kept in files.

use async_trait::async_trait;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};

use super::files::TableWriter;

/// The upload. What is kept is used when it is complete.
#[derive(Debug)]
pub(super) struct KeptUpload {
    inner: Box<dyn MultipartUpload>,
    /// `None` when the upload has ended.
    writer: Option<TableWriter>,
}

impl KeptUpload {
    /// Returns `inner`, of which `writer` gets what is stored.
    pub(super) fn new(inner: Box<dyn MultipartUpload>, writer: TableWriter) -> Self {
        Self {
            inner,
            writer: Some(writer),
        }
    }
}

#[async_trait]
impl MultipartUpload for KeptUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let mut writes = Vec::new();
        if let Some(writer) = &mut self.writer {
            for bytes in data.clone() {
                writes.extend(writer.add(bytes));
            }
        }
        let part = self.inner.put_part(data);
        Box::pin(async move {
            let stored = part.await;
            for write in writes {
                // It is not kept if the thread failed.
                let _ = write.await;
            }
            stored
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let writer = self.writer.take();
        let stored = self.inner.complete().await?;
        if let Some(writer) = writer {
            writer.finish().await;
        }
        Ok(stored)
    }

    async fn abort(&mut self) -> Result<()> {
        self.writer = None;
        self.inner.abort().await
    }
}
