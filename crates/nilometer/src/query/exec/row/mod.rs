//! Operators that process one row at a time and keep no state but a position or a small sample.
//!
//! ```text
//! filter       $match            unwind         $unwind
//! project      $project, $set    redact         $redact
//! limit        $limit, $skip     replace_root   $replaceRoot
//! sample       $sample           geo_near       distances of $geoNear
//! documents    rows that come from the query itself
//! text_score   scores of $text
//! row_by_row   splits the output of one batch into batches of bounded size
//! ```
//!
//! `filter`, `project`, `limit` and `sample` keep blocks as blocks where they can; the others read rows.

pub mod documents;
pub mod filter;
pub mod geo_near;
pub mod limit;
pub mod project;
pub mod redact;
pub mod replace_root;
pub(crate) mod row_by_row;
pub mod sample;
pub mod text_score;
pub mod unwind;
