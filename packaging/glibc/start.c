/* The start-up code of glibc 2.34 and later leaves the constructors to
 * __libc_start_main@GLIBC_2.34. The older one wants them as a function, and the
 * newer libraries still take one. Linked with --wrap=__libc_start_main. */
typedef int (*main_t)(int, char **, char **);
typedef void (*ctor)(int, char **, char **);

extern int old_start(main_t, int, char **, ctor, void (*)(void), void (*)(void), void *);
__asm__(".symver old_start,__libc_start_main@GLIBC_2.2.5");

extern ctor __preinit_array_start[] __attribute__((visibility("hidden")));
extern ctor __preinit_array_end[] __attribute__((visibility("hidden")));
extern ctor __init_array_start[] __attribute__((visibility("hidden")));
extern ctor __init_array_end[] __attribute__((visibility("hidden")));
extern void _init(void);

static void construct(int argc, char **argv, char **env) {
	ctor *f;

	for (f = __preinit_array_start; f < __preinit_array_end; f++)
		(*f)(argc, argv, env);
	_init();
	for (f = __init_array_start; f < __init_array_end; f++)
		(*f)(argc, argv, env);
}

int __wrap___libc_start_main(main_t main, int argc, char **argv, ctor init, void (*fini)(void), void (*rtld_fini)(void), void *stack_end) {
	return old_start(main, argc, argv, init ? init : construct, fini, rtld_fini, stack_end);
}
