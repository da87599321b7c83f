"""The operations and the fused drafter of any library that implements ``dlab.h``, against the oracle:

    pytest --pyargs parity.conformance --dlab-library PATH [--dlab-arithmetic NAME]

Every call runs between guard pages. What the library does not have, or says it does not support, is skipped and named.
"""
