/* Given to every C file of the shipped binary (-include): binds what glibc 2.32
 * and 2.34 moved or re-versioned to the version that every glibc on amd64 has,
 * so that a binary linked on a newer system starts on Debian 11 and RHEL 8.
 * packaging/build checks the outcome: it refuses a symbol that is newer. */
#if !defined(__ASSEMBLER__) && defined(__x86_64__)
#define OLD(f) __asm__(".symver " #f "," #f "@GLIBC_2.2.5");
OLD(dlclose)
OLD(dlerror)
OLD(dlopen)
OLD(dlsym)
OLD(pthread_attr_getstack)
OLD(pthread_attr_getstacksize)
OLD(pthread_create)
OLD(pthread_getattr_np)
OLD(pthread_key_create)
OLD(pthread_setspecific)
OLD(pthread_sigmask)
#undef OLD
__asm__(".symver dlinfo,dlinfo@GLIBC_2.3.3");
#endif
