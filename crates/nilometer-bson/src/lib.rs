//! BSON.
