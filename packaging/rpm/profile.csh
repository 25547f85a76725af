# As better-compute.sh.
if ( "$path" !~ */usr/libexec/better-compute* ) then
	set path = ( /usr/libexec/better-compute $path )
endif
