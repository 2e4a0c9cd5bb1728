//! The policy loss. [`objective`] is the loss of a row and its derivatives: the clipped ratio of [`policy`], the KL term of
//! [`kl`], the weights of [`importance`], and the token weights of [`aggregate`].

pub mod aggregate;
pub mod importance;
pub mod kl;
pub mod objective;
pub mod policy;
