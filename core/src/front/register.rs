//! Checks an engine-driven registration (spec/wire §2.3): the layout that it makes, or why it is
//! refused. The one invariant: what passes has a layout whose object fits L1, and names that every
//! later key can carry.

use crate::config::{Config, TransferModes};
use crate::effect::Refusal;
use crate::event::{Ask, Registration};
use crate::front::key::rules::check_model;
use crate::limits::{MODEL_BYTES_MAX, WORLD_SIZE_MAX};
use crate::names::{Dtype, InstanceId, Layout};
use crate::wire::request::EngineDrivenRegistration;

/// What the engine is told of a registration that decoded.
pub fn register<'a>(config: &Config, payload: &EngineDrivenRegistration<'a>) -> Ask<'a> {
    let instance = InstanceId(payload.instance_id);
    match check(config, payload) {
        Ok(registration) => Ask::Register(registration),
        Err(reason) => refused(instance, payload.model_name, reason),
    }
}

/// A registration that is not served. The name is for people to read, so a long one is cut.
pub fn refused(instance: InstanceId, model: &str, reason: Refusal) -> Ask<'_> {
    let mut bytes = model.len().min(MODEL_BYTES_MAX);
    while !model.is_char_boundary(bytes) {
        bytes -= 1;
    }
    Ask::RegisterRefused { instance, model: &model[..bytes], reason }
}

fn check<'a>(
    config: &Config,
    payload: &EngineDrivenRegistration<'a>,
) -> Result<Registration<'a>, Refusal> {
    if config.transfer_modes == TransferModes::ServerDriven {
        return Err(Refusal::EngineDrivenOff);
    }
    check_model(payload.model_name).map_err(|_| Refusal::Model)?;
    let world_size = u32::try_from(payload.world_size).unwrap_or(0);
    if world_size == 0 || world_size > WORLD_SIZE_MAX {
        return Err(Refusal::WorldSize);
    }
    let block_size = u32::try_from(payload.block_size)
        .map_err(|_| Refusal::Malformed("block_size is out of range"))?;
    Ok(Registration {
        instance: InstanceId(payload.instance_id),
        model: payload.model_name,
        world_size,
        block_size,
        layout: check_layout(config, payload)?,
    })
}

fn check_layout(
    config: &Config,
    payload: &EngineDrivenRegistration<'_>,
) -> Result<Layout, Refusal> {
    let dtype = Dtype::named(payload.dtype_str).ok_or(Refusal::UnknownDtype)?;
    let slots = payload.num_physical_slots.unwrap_or(config.chunk_size as i64);
    if slots <= 0 {
        return Err(Refusal::SlotsNotPositive);
    }
    // Too large, zero or negative: an empty object, or none that could be stored.
    let count = |number: i64| u32::try_from(number).map_err(|_| Refusal::LayoutTooLarge);
    let layout = Layout {
        // `use_mla` really means "one plane" (spec/transfer §4.1).
        planes: if payload.use_mla { 1 } else { 2 },
        layers: count(payload.num_layers)?,
        slots: count(slots)?,
        hidden: count(payload.hidden_dim_size)?,
        dtype,
    };
    match layout.bytes() {
        Some(bytes) if bytes <= config.l1_bytes => Ok(layout),
        _ => Err(Refusal::LayoutTooLarge),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload() -> EngineDrivenRegistration<'static> {
        EngineDrivenRegistration {
            instance_id: 7,
            model_name: "org/m",
            world_size: 2,
            block_size: 16,
            num_layers: 3,
            hidden_dim_size: 40,
            dtype_str: "bfloat16",
            use_mla: false,
            num_physical_slots: None,
        }
    }

    fn reason(payload: EngineDrivenRegistration<'_>) -> Option<Refusal> {
        match register(&Config::default(), &payload) {
            Ask::RegisterRefused { reason, .. } => Some(reason),
            _ => None,
        }
    }

    #[test]
    fn a_layout_has_the_planes_slots_and_type_that_were_named() {
        let Ask::Register(registration) = register(&Config::default(), &payload()) else {
            panic!("a whole registration is served");
        };
        let dtype = Dtype::named("bfloat16").expect("a torch type");
        let layout = Layout { planes: 2, layers: 3, slots: 256, hidden: 40, dtype };
        assert_eq!(registration.layout, layout);
        assert_eq!((registration.instance, registration.world_size), (InstanceId(7), 2));

        let fused =
            EngineDrivenRegistration { use_mla: true, num_physical_slots: Some(8), ..payload() };
        let Ask::Register(registration) = register(&Config::default(), &fused) else {
            panic!("one plane is served");
        };
        assert_eq!((registration.layout.planes, registration.layout.slots), (1, 8));
    }

    #[test]
    fn what_cannot_be_stored_is_refused_with_its_reason() {
        let p = payload();
        let cases = [
            (EngineDrivenRegistration { dtype_str: "float17", ..p }, Refusal::UnknownDtype),
            (EngineDrivenRegistration { dtype_str: "Size", ..p }, Refusal::UnknownDtype),
            (
                EngineDrivenRegistration { num_physical_slots: Some(0), ..p },
                Refusal::SlotsNotPositive,
            ),
            (
                EngineDrivenRegistration { num_physical_slots: Some(-1), ..p },
                Refusal::SlotsNotPositive,
            ),
            (EngineDrivenRegistration { num_layers: 0, ..p }, Refusal::LayoutTooLarge),
            (EngineDrivenRegistration { hidden_dim_size: -1, ..p }, Refusal::LayoutTooLarge),
            (
                EngineDrivenRegistration {
                    num_layers: u32::MAX as i64,
                    hidden_dim_size: u32::MAX as i64,
                    ..p
                },
                Refusal::LayoutTooLarge,
            ),
            (EngineDrivenRegistration { world_size: 0, ..p }, Refusal::WorldSize),
            (EngineDrivenRegistration { world_size: 256, ..p }, Refusal::WorldSize),
            (EngineDrivenRegistration { model_name: "a@b", ..p }, Refusal::Model),
            (EngineDrivenRegistration { model_name: "", ..p }, Refusal::Model),
        ];
        for (payload, refusal) in cases {
            assert_eq!(reason(payload), Some(refusal), "{payload:?}");
        }
        assert_eq!(reason(p), None);
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let long = "ü".repeat(MODEL_BYTES_MAX);
        let Ask::RegisterRefused { model, .. } = refused(InstanceId(1), &long, Refusal::Rope)
        else {
            panic!("a refusal is a refusal");
        };
        assert_eq!(model.len(), MODEL_BYTES_MAX);
        let odd = alloc::format!("a{long}");
        let Ask::RegisterRefused { model, .. } = refused(InstanceId(1), &odd, Refusal::Rope) else {
            panic!("a refusal is a refusal");
        };
        assert_eq!(model.len(), MODEL_BYTES_MAX - 1);
    }
}
