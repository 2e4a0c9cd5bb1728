//! The choice of an instruction set at run time, made in one place for everything that computes on a CPU.
//!
//! [`kernel!`] compiles a function once for each kind of vector; an [`Isa`] says which of them to call.

/// An instruction set that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Arrays of eight f32, which the compiler turns into the vectors of any processor.
    Portable,
    /// AVX2 with fused multiply-adds.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 with F, BW, VL and DQ.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 with products of four bytes (VNNI).
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// `Avx512Vnni` with products of bfloat16 pairs.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// `Avx512Bf16` and AMX's tiles of bfloat16.
    #[cfg(target_arch = "x86_64")]
    Amx,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// The vectors that an instruction set computes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vectors {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// How an instruction set multiplies by bfloat16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bf16Product {
    /// Weights are widened to f32.
    Widen,
    /// AVX-512's products of pairs; both operands are rounded to bfloat16.
    #[cfg(target_arch = "x86_64")]
    Dot,
    /// AMX's tiles; both operands are rounded to bfloat16.
    #[cfg(target_arch = "x86_64")]
    Tiles,
}

/// How an instruction set multiplies 8-bit integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Int8Product {
    /// One by one.
    Portable,
    /// AVX2's products of unsigned and signed bytes, added in pairs of 16 bits.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512's products of four unsigned and signed bytes, added to 32 bits.
    #[cfg(target_arch = "x86_64")]
    Vnni,
}

impl Isa {
    /// Returns the newest instruction set of this machine. Which one is the fastest is measured: see `fastest.rs`.
    pub fn detect() -> Self {
        *Self::available().last().unwrap_or(&Self(Kind::Portable))
    }

    /// Returns the instruction set of a name such as `avx2`, if this machine has it.
    pub fn named(name: &str) -> Option<Self> {
        Self::available().into_iter().find(|isa| isa.name() == name)
    }

    /// Returns all instruction sets of this machine, the newest last. Each includes those before it.
    pub fn available() -> Vec<Self> {
        let mut kinds = vec![Kind::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            let fma = is_x86_feature_detected!("fma");
            if is_x86_feature_detected!("avx2") && fma {
                kinds.push(Kind::Avx2);
            }
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq");
            if avx512 && fma {
                kinds.push(Kind::Avx512);
                let vnni = is_x86_feature_detected!("avx512vnni");
                let bf16 = vnni && is_x86_feature_detected!("avx512bf16");
                let further = [
                    (vnni, Kind::Avx512Vnni),
                    (bf16, Kind::Avx512Bf16),
                    (bf16 && amx::is_available(), Kind::Amx),
                ];
                kinds.extend(further.into_iter().filter(|(has, _)| *has).map(|(_, kind)| kind));
            }
        }
        #[cfg(target_arch = "aarch64")]
        kinds.push(Kind::Neon);
        kinds.into_iter().map(Self).collect()
    }

    /// Returns all of x86-64, whether this machine has them or not.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(super) fn all_of_x86() -> [Self; 6] {
        use Kind::*;
        [Portable, Avx2, Avx512, Avx512Vnni, Avx512Bf16, Amx].map(Self)
    }

    /// Returns its name, such as `avx2`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Bf16 => "avx512-bf16",
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => "amx",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
        }
    }

    /// Returns the vectors to compute on.
    pub(super) fn vectors(self) -> Vectors {
        match self.0 {
            Kind::Portable => Vectors::Portable,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => Vectors::Avx2,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 | Kind::Avx512Vnni | Kind::Avx512Bf16 | Kind::Amx => Vectors::Avx512,
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => Vectors::Neon,
        }
    }

    /// Returns how it multiplies 8-bit integers.
    pub(super) fn int8_product(self) -> Int8Product {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 | Kind::Avx512 => Int8Product::Avx2,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni | Kind::Avx512Bf16 | Kind::Amx => Int8Product::Vnni,
            _ => Int8Product::Portable,
        }
    }

    /// Returns how it multiplies by bfloat16.
    pub(super) fn bf16_product(self) -> Bf16Product {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Bf16 => Bf16Product::Dot,
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => Bf16Product::Tiles,
            _ => Bf16Product::Widen,
        }
    }
}

/// Defines a function over any [`Vector`](super::vector::Vector) `V`, called with the [`Isa`] as its first argument.
///
/// The body is compiled for each kind of vector in a function with the matching `#[target_feature]`. Everything it
/// calls with vectors is `#[inline(always)]`: code outside of such a function would not have the instructions. A body
/// that does not name `V` is a plain loop, which the compiler turns into the same vectors.
macro_rules! kernel {
    (
        $(#[$meta:meta])*
        $visibility:vis fn $name:ident<$V:ident>($($arg:ident: $type:ty),* $(,)?) $(-> $output:ty)? $body:block
    ) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $visibility fn $name(isa: $crate::model::kernels::isa::Isa, $($arg: $type),*) $(-> $output)? {
            $crate::model::kernels::isa::kernel! {
                unsafe fn for_isa<$V>($($arg: $type),*) $(-> $output)? $body
            }
            // SAFETY: the body takes safe arguments, and vectors need only what `isa` stands for.
            unsafe { for_isa(isa, $($arg),*) }
        }
    };
    (
        $(#[$meta:meta])*
        $visibility:vis unsafe fn $name:ident<$V:ident $(, $W:ident: $bound:path)?>($($arg:ident: $type:ty),* $(,)?)
        $(-> $output:ty)? $body:block
    ) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, unsafe_op_in_unsafe_fn)]
        $visibility unsafe fn $name$(<$W: $bound>)?(
            isa: $crate::model::kernels::isa::Isa, $($arg: $type),*
        ) $(-> $output)? {
            use $crate::model::kernels::isa::Vectors;
            use $crate::model::kernels::vector;

            #[inline(always)]
            unsafe fn body<$V: vector::Vector $(, $W: $bound)?>($($arg: $type),*) $(-> $output)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2$(<$W: $bound>)?($($arg: $type),*) $(-> $output)? {
                body::<vector::Avx2 $(, $W)?>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
            unsafe fn avx512$(<$W: $bound>)?($($arg: $type),*) $(-> $output)? {
                body::<vector::Avx512 $(, $W)?>($($arg),*)
            }
            match isa.vectors() {
                Vectors::Portable => body::<[f32; 8] $(, $W)?>($($arg),*),
                #[cfg(target_arch = "x86_64")]
                Vectors::Avx2 => avx2$(::<$W>)?($($arg),*),
                #[cfg(target_arch = "x86_64")]
                Vectors::Avx512 => avx512$(::<$W>)?($($arg),*),
                #[cfg(target_arch = "aarch64")]
                Vectors::Neon => body::<vector::Neon $(, $W)?>($($arg),*),
            }
        }
    };
}
pub(super) use kernel;

#[cfg(target_arch = "x86_64")]
mod amx {
    use std::arch::x86_64::__cpuid_count;
    use std::sync::OnceLock;

    /// Whether processor and system have tiles of bfloat16. Asks the system for them once, on behalf of all threads.
    pub(super) fn is_available() -> bool {
        static AVAILABLE: OnceLock<bool> = OnceLock::new();
        *AVAILABLE.get_or_init(|| {
            const BF16_AND_TILE: u32 = 1 << 22 | 1 << 24;
            // Processors with AVX-512, which the caller has seen, have this leaf.
            let has = __cpuid_count(7, 0).edx & BF16_AND_TILE == BF16_AND_TILE;
            has && permitted()
        })
    }

    /// Linux gives the tiles' 8 KiB of state only to processes that ask.
    #[cfg(target_os = "linux")]
    fn permitted() -> bool {
        const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
        const TILE_DATA: usize = 18;
        // SAFETY: the call changes nothing but the permission.
        unsafe { nix::libc::syscall(nix::libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
    }

    #[cfg(not(target_os = "linux"))]
    fn permitted() -> bool {
        false
    }
}
