//! Calendar and time zones: arithmetic on milliseconds since 1970, without BSON.
//!
//! ```text
//! instant (ms, UTC) ──zone.to_local──▶ local ms ──civil_date──▶ year, month, day, week …
//!                   ◀─zone.to_utc────            ◀─────────────
//! ```
//!
//! The calendar is the proleptic Gregorian one over the whole range of a 64-bit date, some 292
//! million years either way. Zones come from the database bundled with the program, never from the
//! machine, so an answer does not depend on where it is computed. This module has no clock. The
//! conversion of days to dates is [`nilometer_bson::civil_date`].
//!
//! [`date_trunc_ms`] is the function kernels call for every value of a block.

mod add;
mod diff;
mod format;
mod parse;
mod parse_format;
mod trunc;
mod unit;
mod zone;

use nilometer_bson::civil_date::DAY_MS;

pub use add::{AddError, add};
pub use diff::diff;
pub use format::{DateFormat, FormatError};
pub use parse::parse_date;
pub use trunc::date_trunc_ms;
pub use unit::{Unit, Weekday};
pub use zone::TimeZone;

/// 2000-01-01 in days since 1970: the first bin of `$dateTrunc` starts here.
const REFERENCE_DAYS: i64 = 10_957;
/// 2000-01-01T00:00 in milliseconds since 1970.
const REFERENCE_MS: i64 = REFERENCE_DAYS * DAY_MS;
