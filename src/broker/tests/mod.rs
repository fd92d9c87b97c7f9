//! The cluster as its clients see it: requests as bytes, answers as bytes.

mod admin;
mod client;
mod faults;
mod groups;
mod versions;
mod writes;
