//! Hostile bytes against everything that reads what others wrote.
//!
//! Each campaign makes inputs from one seed: valid samples of our own and kafka-protocol's encoders, changed in their
//! structure (lengths and counts edited, checksums made right again so that deeper layers are reached), and noise.
//! The oracle of every input: no panic, no hang, and no more memory than the limit that its campaign states. How many
//! inputs reached each layer is counted and asserted: a batch fuzzer whose inputs all die at the CRC shows nothing.
//!
//! | Variable | What it sets |
//! |---|---|
//! | `KEYLANE_HOSTILE_INPUTS` | inputs of all campaigns together (10000) |
//! | `KEYLANE_HOSTILE_SEED` | the seed (1) |
//! | `KEYLANE_HOSTILE_INPUT` | only this input of each campaign, as a failure prints it |
//!
//! A find becomes a test in `regressions`.

mod alloc;
mod answers;
mod batches;
#[cfg(feature = "broker")]
mod broker;
mod campaign;
mod clients;
mod frames;
mod generate;
mod groups;
mod liar;
mod mutate;
mod pack;
mod regressions;
mod rng;
mod texts;

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;
