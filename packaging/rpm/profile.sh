# Whoever types bc gets Better Compute's, which hands sums to the calculator.
# /usr/bin/bc is the calculator's own, and what does not start from a login shell
# never sees another.
case ":$PATH:" in
*:/usr/libexec/better-compute:*) ;;
*) PATH=/usr/libexec/better-compute:$PATH ;;
esac
