//! The few shapes of DWARF expressions that compilers and hand-written code describe frames with.

use gimli::{Encoding, EndianSlice, Expression, LittleEndian, Operation};

/// What an expression computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `register + offset`.
    Register { register: u16, offset: i64 },
    /// `*(register + offset) + addend`: gcc where it has realigned the stack, OpenSSL's assembly.
    AtRegister { register: u16, offset: i64, addend: u64 },
    /// `register + 8 + ((pc_register & 15) >= from) * 8`: what ld and lld say of their PLT.
    Plt { register: u16, pc_register: u16, from: u64 },
}

type Op<'a> = Operation<EndianSlice<'a, LittleEndian>>;

/// The longest of the shapes, in operations, and one more.
const MAX_OPERATIONS: usize = 10;

/// The shape of an expression; `None` if it is another.
pub(crate) fn shape(
    expression: Expression<EndianSlice<'_, LittleEndian>>,
    encoding: Encoding,
) -> Option<Shape> {
    let mut operations = expression.operations(encoding);
    let mut seen = [Op::Nop; MAX_OPERATIONS];
    let mut count = 0;
    while let Some(operation) = operations.next().ok()? {
        *seen.get_mut(count)? = operation;
        count += 1;
    }
    let (first, rest) = seen.get(..count)?.split_first()?;
    let (register, offset) = register(first)?;
    match *rest {
        [] => Some(Shape::Register { register, offset }),
        [Op::Deref { size: 8, space: false, .. }] => {
            Some(Shape::AtRegister { register, offset, addend: 0 })
        }
        [Op::Deref { size: 8, space: false, .. }, Op::PlusConstant { value: addend }] => {
            Some(Shape::AtRegister { register, offset, addend })
        }
        [
            ref pc,
            Op::UnsignedConstant { value: 15 },
            Op::And,
            Op::UnsignedConstant { value: from },
            Op::Ge,
            Op::UnsignedConstant { value: 3 },
            Op::Shl,
            Op::Plus,
        ] if offset == 8 => match self::register(pc)? {
            (pc_register, 0) => Some(Shape::Plt { register, pc_register, from }),
            _ => None,
        },
        _ => None,
    }
}

fn register(operation: &Op<'_>) -> Option<(u16, i64)> {
    match *operation {
        Op::RegisterOffset { register, offset, base_type } if base_type.0 == 0 => {
            Some((register.0, offset))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gimli::Format;

    fn of(bytes: &[u8]) -> Option<Shape> {
        let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 1 };
        shape(Expression(EndianSlice::new(bytes, LittleEndian)), encoding)
    }

    #[test]
    fn knows_the_shapes() {
        // breg7+8 breg16 lit15 and lit11 ge lit3 shl plus
        let plt = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        assert_eq!(of(&plt), Some(Shape::Plt { register: 7, pc_register: 16, from: 11 }));
        let at = |addend| Some(Shape::AtRegister { register: 6, offset: -8, addend });
        assert_eq!(of(&[0x76, 0x78, 6]), at(0));
        assert_eq!(of(&[0x76, 0x78, 6, 0x23, 8]), at(8));
        assert_eq!(of(&[0x76, 0]), Some(Shape::Register { register: 6, offset: 0 }));
        // bregx
        assert_eq!(of(&[0x92, 6, 0]), Some(Shape::Register { register: 6, offset: 0 }));
    }

    #[test]
    fn knows_no_others() {
        let other_shift = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x32, 0x24, 0x22];
        for bytes in [&[][..], &[6], &[0x77], &[0x76, 0, 6, 6], &[0x76, 0, 0x23, 8], &other_shift] {
            assert_eq!(of(bytes), None, "{bytes:x?}");
        }
        assert_eq!(of(&[0x96; 100]), None);
    }
}
