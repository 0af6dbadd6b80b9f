//! Text search: words of strings, their scores, and the queries of `$text`.
//!
//! ```text
//! "The cats sat"  ── tokenizer ─►  cat, sat          words without stop words, stemmed and folded
//!    TextSpec     ── of a document ─►  {cat: 0.75, sat: 0.75}     the entries of a text index
//!    TextQuery    ── of a document ─►  a score, or no match
//! ```
//!
//! | file | contains |
//! |---|---|
//! | `language` | names and codes of languages, their stems and stop words |
//! | `fold` | delimiters, case and diacritics |
//! | `tokenizer` | the terms of a string |
//! | `spec` | the strings that an index covers, and the scores of their terms |
//! | `query` | the search string, and its evaluation on a document |
//!
//! Pure computation, without panics for any input. Terms, scores and matches are those of version 3 of MongoDB's text index.
//! Stems are those of Snowball, computed by the crate `rust-stemmers`; stop words are those of the crate `stop-words`.

mod fold;
mod language;
mod query;
mod spec;
mod tokenizer;

pub use language::TextLanguage;
pub use query::{TextQuery, TextSensitivity};
pub use spec::{TextSpec, WEIGHT_MAX, WHOLE_DOCUMENT, index_term};
