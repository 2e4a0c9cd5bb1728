//! The program itself, started as users start it.

mod access;
mod endings;
mod examples;
mod hub;
mod instruction_sets;
mod judges;
mod main_job;
mod overwatch;
mod python_client;
mod restarts;
mod samplers;
mod serve;
mod start;
