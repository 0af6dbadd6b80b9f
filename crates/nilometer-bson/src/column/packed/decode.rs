//! Decoding of packed columns, fused with reading the codes: no intermediate list of codes.

use super::super::blocks::to_value;
use super::super::delta::Scale;
use super::super::element::tag;
use super::super::error::ColumnError;
use super::super::kernels::{DecodeOutput, RunningSums};
use super::super::numbers::{
    BoolMap, DoubleMap, IdMap, Int32Map, Int64Map, ShortMap, SumMap, TimestampMap,
};
use super::rice_reader::{CHUNK, CodeChunk, RiceReader};
use super::sparse::SparseReader;
use super::{PackedColumn, PackedHeader, PackedIds, packed_ids};
use crate::block::{BlockData, ColumnBlock};
use crate::value::ObjectId;

/// Decodes a column of at most `max_values` values, packed or not.
pub fn decode_packed(bytes: &[u8], max_values: usize) -> Result<ColumnBlock, ColumnError> {
    if let Some(PackedIds { ids, .. }) = packed_ids(bytes, max_values)? {
        return Ok(ColumnBlock::from_parts(
            ids.len(),
            BlockData::ObjectId(ids),
            None,
        ));
    }
    match PackedColumn::of(bytes, max_values)? {
        Some(packed) => first_values(&packed, bytes.len(), packed.count + 1),
        None => super::super::decode_block(bytes, max_values),
    }
}

/// Decodes the first `count` values of a packed column of at most `max_values` values. `None` if it has fewer, or is not packed as
/// codes. What follows those values is not checked.
pub fn decode_first(
    bytes: &[u8],
    max_values: usize,
    count: usize,
) -> Result<Option<ColumnBlock>, ColumnError> {
    let packed = PackedColumn::of(bytes, max_values)?;
    let packed = packed.filter(|packed| (1..=packed.count + 1).contains(&count));
    let first = packed.map(|packed| first_values(&packed, bytes.len(), count));
    first.transpose()
}

/// Returns the first `length` values of a column of `bytes` bytes.
fn first_values(
    packed: &PackedColumn<'_>,
    bytes: usize,
    length: usize,
) -> Result<ColumnBlock, ColumnError> {
    let damaged = || ColumnError::Truncated { offset: bytes };
    let head = &packed.head;
    match packed.parameter {
        Some(parameter) => {
            let codes = RiceReader::new(packed.codes, packed.count, parameter);
            let codes = RiceCodes::of(codes.ok_or_else(damaged)?);
            values(head, length, codes, damaged)
        }
        None => {
            let codes = SparseReader::new(packed.codes, packed.count).ok_or_else(damaged)?;
            if codes.is_all_zero() {
                return Ok(ColumnBlock::constant(length, to_value(head.literal(), 0)?));
            }
            values(head, length, codes, damaged)
        }
    }
}

/// Differences that are summed while they are read.
trait DifferenceReader: Clone {
    /// Writes the next sums into `numbers`, at most [`CHUNK`]; `None` if the codes are damaged.
    fn sums<const SECOND: bool>(
        &mut self,
        sums: &mut RunningSums<i64, SECOND>,
        numbers: &mut [i64],
    ) -> Option<()>;

    /// True if no codes are left.
    fn is_at_end(&self) -> bool;
}

/// Rice codes, with those read but not used yet: another run may start anywhere.
#[derive(Clone)]
struct RiceCodes<'a> {
    reader: RiceReader<'a>,
    chunk: CodeChunk,
    from: usize,
    to: usize,
}

impl<'a> RiceCodes<'a> {
    fn of(reader: RiceReader<'a>) -> Self {
        Self {
            reader,
            chunk: CodeChunk::new(),
            from: 0,
            to: 0,
        }
    }
}

impl DifferenceReader for RiceCodes<'_> {
    #[inline]
    fn sums<const SECOND: bool>(
        &mut self,
        sums: &mut RunningSums<i64, SECOND>,
        mut numbers: &mut [i64],
    ) -> Option<()> {
        while !numbers.is_empty() {
            if self.from == self.to {
                (self.from, self.to) = (0, self.reader.next(&mut self.chunk)?);
            }
            let count = (self.to - self.from).min(numbers.len());
            let (now, behind) = std::mem::take(&mut numbers).split_at_mut(count);
            match self.chunk.narrow() {
                Some(narrow) => {
                    // Running sums of bytes are vectorised.
                    let mut steps = [0_i8; CHUNK];
                    for (step, code) in steps.iter_mut().zip(narrow) {
                        *step = (code >> 1) as i8 ^ -((code & 1) as i8);
                    }
                    for (number, step) in now.iter_mut().zip(steps.get(self.from..)?) {
                        *number = sums.add(i64::from(*step));
                    }
                }
                None => {
                    for (number, code) in now.iter_mut().zip(self.chunk.wide().get(self.from..)?) {
                        *number = sums.next(*code);
                    }
                }
            }
            self.from += count;
            numbers = behind;
        }
        Some(())
    }

    fn is_at_end(&self) -> bool {
        self.from == self.to
    }
}

impl DifferenceReader for SparseReader<'_> {
    fn sums<const SECOND: bool>(
        &mut self,
        sums: &mut RunningSums<i64, SECOND>,
        mut numbers: &mut [i64],
    ) -> Option<()> {
        while !numbers.is_empty() {
            let zeros = self.zeros(numbers.len());
            let (still, behind) = std::mem::take(&mut numbers).split_at_mut(zeros);
            sums.again(still);
            numbers = behind;
            if let Some((number, behind)) = std::mem::take(&mut numbers).split_first_mut() {
                *number = sums.next(self.value()?);
                numbers = behind;
            }
        }
        Some(())
    }

    fn is_at_end(&self) -> bool {
        self.is_empty()
    }
}

fn values(
    head: &PackedHeader,
    length: usize,
    codes: impl DifferenceReader,
    damaged: impl Fn() -> ColumnError,
) -> Result<ColumnBlock, ColumnError> {
    use BlockData::{Bool, DateTime, Double, Int32, Int64, ShortInt64, Timestamp};
    let damaged = &damaged;
    if head.tag == tag::INT64 && i16::try_from(head.literal().to_int()).is_ok() {
        let mut map = ShortMap::default();
        let values = mapped_values::<_, false>(head, length, &mut map, codes.clone(), damaged)?;
        if map.fits() {
            return Ok(ColumnBlock::from_parts(length, ShortInt64(values), None));
        }
    }
    let data = match head.tag {
        tag::INT32 => Int32(mapped_values::<_, false>(
            head,
            length,
            &mut Int32Map,
            codes,
            damaged,
        )?),
        tag::INT64 => Int64(mapped_values::<_, false>(
            head,
            length,
            &mut Int64Map,
            codes,
            damaged,
        )?),
        tag::DATE => DateTime(mapped_values::<_, true>(
            head,
            length,
            &mut Int64Map,
            codes,
            damaged,
        )?),
        tag::TIMESTAMP => Timestamp(mapped_values::<_, true>(
            head,
            length,
            &mut TimestampMap,
            codes,
            damaged,
        )?),
        tag::BOOL => Bool(mapped_values::<_, false>(
            head,
            length,
            &mut BoolMap,
            codes,
            damaged,
        )?),
        tag::OBJECT_ID => {
            let mut map = IdMap(ObjectId::default());
            BlockData::ObjectId(mapped_values::<_, true>(
                head, length, &mut map, codes, damaged,
            )?)
        }
        _ => {
            let mut map = DoubleMap(Scale::Memory);
            Double(mapped_values::<_, false>(
                head, length, &mut map, codes, damaged,
            )?)
        }
    };
    Ok(ColumnBlock::from_parts(length, data, None))
}

/// Returns the first `length` values, converted from running sums.
fn mapped_values<M: SumMap, const SECOND: bool>(
    head: &PackedHeader,
    length: usize,
    map: &mut M,
    mut codes: impl DifferenceReader,
    damaged: &impl Fn() -> ColumnError,
) -> Result<Vec<M::Value>, ColumnError> {
    let mut mapped_values = vec![M::Value::default(); length];
    let mut out = DecodeOutput::new(&mut mapped_values, 0);
    let (first, number) = map.literal(head.literal());
    out.push(first);
    let mut sums = RunningSums::<i64, SECOND>::after(number);
    let mut numbers = [0; CHUNK];
    let mut wanted = length - 1;
    let mut is_all = true;
    for run in &head.runs {
        let mut left = run.count.min(wanted);
        is_all = left == run.count;
        if left == 0 && !is_all {
            break;
        }
        wanted -= left;
        sums.number = map.block(run.nibble, sums.number, 0)?;
        while left > 0 {
            let (now, _) = numbers.split_at_mut(left.min(CHUNK));
            codes.sums(&mut sums, now).ok_or_else(damaged)?;
            map.values(now, out.take(now.len()));
            left -= now.len();
        }
        if !is_all {
            break;
        }
    }
    if is_all && !codes.is_at_end() {
        return Err(damaged());
    }
    Ok(mapped_values)
}
