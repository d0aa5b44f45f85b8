//! Log lines, made from facts alone. At INFO a line per change of state, none per request; the
//! texts that users search for (spec/http-cli §4.1) are there per request at DEBUG.

use crate::telemetry::FactBatch;
use kvtide_core::fact::{Fact, InstanceEnd};

/// Tells the log what the facts say.
#[derive(Debug)]
pub struct News {
    chunk_size: u32,
    lost: u64,
}

impl News {
    pub fn new(chunk_size: u32) -> News {
        News { chunk_size, lost: 0 }
    }

    pub fn tell(&mut self, batch: &FactBatch) {
        if batch.lost > 0 {
            self.lost += batch.lost;
            let (lost, total) = (batch.lost, self.lost);
            tracing::warn!("Telemetry fell behind: {lost} facts lost, {total} since the start");
        }
        for fact in &batch.facts {
            self.line(fact);
        }
    }

    fn line(&self, fact: &Fact) {
        match fact {
            Fact::InstanceRegistered { instance, model, world_size, layers } => {
                let (id, model) = (instance.0, told(model));
                tracing::info!(
                    "Registered KV cache for GPU ID {id} with {layers} layers \
                     (model {model}, world size {world_size}, engine-driven)"
                );
            }
            Fact::InstanceEnded { instance, why } => {
                let id = instance.0;
                match why {
                    InstanceEnd::Unregistered => tracing::info!("Instance {id} has unregistered"),
                    InstanceEnd::Replaced => {
                        tracing::warn!("Instance {id} registers anew with another model or layout");
                    }
                    InstanceEnd::Reaped => {
                        tracing::warn!("Instance {id} is reaped: it has been silent for too long");
                    }
                }
            }
            Fact::InstanceTold { instance } => {
                let id = instance.0;
                tracing::info!("Instance {id} is not registered here and was told so once");
            }
            Fact::RegistrationRefused { instance, model, reason } => {
                let (id, model) = (instance.0, told(model));
                tracing::warn!("Registration of instance {id} for model {model} {reason}");
            }
            Fact::Cleared { force } => tracing::info!("L1 is cleared (force={force})"),
            Fact::QuotaChanged => tracing::info!("Quotas have changed"),
            Fact::Stored { keys, took, .. } => {
                let (tokens, seconds) = (self.tokens(keys.len()), took.as_secs_f64());
                tracing::debug!("Stored {tokens} tokens in {seconds:.3} seconds");
            }
            Fact::Retrieved { keys, took, .. } => {
                let (tokens, seconds) = (self.tokens(keys.len()), took.as_secs_f64());
                tracing::debug!("Retrieved {tokens} tokens in {seconds:.3} seconds");
            }
            Fact::RequestFaulted { operation, fault } => {
                tracing::debug!("Refused {operation}: {}", fault.label());
            }
            _ => {}
        }
    }

    fn tokens(&self, chunks: u64) -> u64 {
        chunks * self.chunk_size as u64
    }
}

/// A name that came over a socket, as it may stand in a log line: no line breaks or escapes of its
/// own, and not longer than a line bears.
fn told(name: &str) -> String {
    name.escape_debug().take(NAME_CHARS_MAX).collect()
}

const NAME_CHARS_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_forge_a_line() {
        let forged = "m\n[2026-01-01] LMCache ERROR: \u{1b}[31mfire";
        let line = told(forged);
        assert!(!line.contains(['\n', '\u{1b}']), "{line}");
        assert_eq!(told(&"x".repeat(1000)).len(), NAME_CHARS_MAX);
    }
}
