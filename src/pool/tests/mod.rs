//! The board against the public bug reports it must get right, against all small orderings, and against a naive model.

mod cases;
mod longest;
mod model;
mod oracle;
mod orderings;
