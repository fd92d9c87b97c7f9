//! The classic consumer group protocol: membership, assignors and the bytes members exchange.

pub mod assignment;
pub mod assignor;
mod codec;
pub mod membership;
pub mod subscription;

pub use assignment::Assignment;
pub use assignor::{Assignor, GroupMember};
pub use codec::MetadataError;
pub use membership::{GroupConfig, Identity, Membership, Owned};
pub use subscription::Subscription;
