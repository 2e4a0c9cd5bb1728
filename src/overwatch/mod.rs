//! overwatch
