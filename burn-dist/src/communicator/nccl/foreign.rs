//! [`foreign_functions`]: functions of a shared library as a trait, which tests implement too.

/// What a library gives out without saying what it is. An integer of a pointer's size is passed as a pointer is.
pub(super) type Handle = usize;

/// Declares `$functions` with one method for each function, and `$table`, the functions of a loaded library.
macro_rules! foreign_functions {
    (
        $(#[$doc:meta])* $functions:ident, $table:ident {
            $( $symbol:literal $name:ident( $($argument:ident: $kind:ty),* ) -> $result:ty; )*
        }
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// Of each method: the arguments are what the library asks for. Pointers to results are to variables of
        /// that kind; handles come from the library and were not given back.
        #[allow(clippy::too_many_arguments, clippy::missing_safety_doc)]
        pub(super) trait $functions: std::fmt::Debug + Send + Sync {
            $( #[doc = $symbol] unsafe fn $name(&self, $($argument: $kind),*) -> $result; )*
        }

        pub(super) struct $table {
            $( $name: unsafe extern "C" fn($($kind),*) -> $result, )*
            /// Keeps the functions in memory.
            _library: libloading::Library,
        }

        impl $table {
            /// The library's functions, or the first that it lacks.
            ///
            /// # Safety
            /// Functions of these names have these signatures.
            pub(super) unsafe fn bind(library: libloading::Library) -> Result<Self, &'static str> {
                $(
                    // SAFETY: the caller vouches for the signature; the copy does not outlive the library, which
                    // moves into the table.
                    let $name = unsafe {
                        library.get::<unsafe extern "C" fn($($kind),*) -> $result>($symbol.as_bytes())
                    };
                    let $name = *$name.map_err(|_| $symbol)?;
                )*
                Ok(Self { $($name,)* _library: library })
            }
        }

        impl std::fmt::Debug for $table {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($table)).finish_non_exhaustive()
            }
        }

        impl $functions for $table {
            $( unsafe fn $name(&self, $($argument: $kind),*) -> $result {
                // SAFETY: the caller keeps the library's contract, and the signature is the library's.
                unsafe { (self.$name)($($argument),*) }
            } )*
        }
    };
}

pub(super) use foreign_functions;
