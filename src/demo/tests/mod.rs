//! Tests of the picture and of the course of the demo, without threads and without a terminal.

mod picture;
mod story;
