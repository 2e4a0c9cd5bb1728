//! roll
