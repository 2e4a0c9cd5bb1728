//! From rewards to advantages: the group-relative estimate, reward shaping and the penalty on overlong answers.

pub mod estimate;
pub mod overlong;
pub mod reward;
