//! redquorum
pub mod protocol;
