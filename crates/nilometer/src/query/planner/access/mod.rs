//! Access paths by index.

pub mod safety;
mod shape;

pub use shape::shape_of;
