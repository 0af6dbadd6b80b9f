//! Batches as columns from beginning to end: the first are kept until the layout is known.

use std::io::Write;

use nilometer::query::batch::Batch;

use super::file::{ColumnFile, ColumnForm};
use super::layout::{LayoutBuilder, NamedColumns};
use super::table::TableBuilder;
use super::{OBSERVED_BYTES_MAX, OBSERVED_ROWS_MAX};

/// Bytes that a value of a block counts.
const VALUE_BYTES: usize = 8;

/// Columns that are being written.
pub(crate) struct ColumnStream<W: Write + Send> {
    form: ColumnForm,
    named: NamedColumns,
    layout: LayoutBuilder,
    /// Where the columns go, until they are written.
    out: Option<W>,
    observed: Vec<Batch>,
    observed_rows: usize,
    observed_bytes: usize,
    written: Option<(TableBuilder, ColumnFile<W>)>,
}

impl<W: Write + Send> ColumnStream<W> {
    /// Creates a stream of the named columns, or of all.
    pub(crate) fn new(
        form: ColumnForm,
        named: NamedColumns,
        layout: LayoutBuilder,
        out: W,
    ) -> Self {
        Self {
            form,
            named,
            layout,
            out: Some(out),
            observed: Vec::new(),
            observed_rows: 0,
            observed_bytes: 0,
            written: None,
        }
    }

    /// Adds documents. An error says what is wrong with them, or with the output.
    pub(crate) fn push(&mut self, batch: Batch) -> Result<(), String> {
        if let Some((table, file)) = &mut self.written {
            return add(table, file, &batch);
        }
        self.layout.observe(&batch).map_err(|e| e.message)?;
        self.observed_rows += batch.len();
        self.observed_bytes += match &batch {
            Batch::Rows(rows) => rows.iter().map(|row| row.as_bytes().len()).sum(),
            Batch::Block(block) => batch.len() * block.bucket.columns().len() * VALUE_BYTES,
        };
        self.observed.push(batch);
        if self.observed_rows >= OBSERVED_ROWS_MAX || self.observed_bytes >= OBSERVED_BYTES_MAX {
            self.begin()?;
        }
        Ok(())
    }

    /// Writes what was kept.
    fn begin(&mut self) -> Result<(), String> {
        let Some(out) = self.out.take() else {
            return Ok(());
        };
        let mut table = TableBuilder::new(self.layout.finish(&self.named)?);
        let mut file = ColumnFile::create(self.form, out, table.schema())?;
        for batch in std::mem::take(&mut self.observed) {
            add(&mut table, &mut file, &batch)?;
        }
        self.written = Some((table, file));
        Ok(())
    }

    /// Writes the rest and the end. Returns the output and the number of documents.
    pub(crate) fn finish(mut self) -> Result<(W, u64), String> {
        self.begin()?;
        let Some((mut table, mut file)) = self.written else {
            return Err("nothing was begun".to_owned());
        };
        if table.has_rows() {
            file.write(&table.finish().map_err(|e| e.to_string())?)?;
        }
        Ok((file.finish()?, table.count()))
    }
}

fn add<W: Write + Send>(
    table: &mut TableBuilder,
    file: &mut ColumnFile<W>,
    batch: &Batch,
) -> Result<(), String> {
    table.push(batch)?;
    if table.is_full() {
        file.write(&table.finish().map_err(|e| e.to_string())?)?;
    }
    Ok(())
}
