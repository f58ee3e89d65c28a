//! redquorum
#[doc(hidden)]
pub mod node;
#[doc(hidden)]
pub mod protocol;
