"""Instructions of the loop for each element of a thread: offline."""
import re, collections, sys
from comp import info
def count(s, elements):
    """(registers etc. apart) loop instructions, per element, histogram."""
    ins=[(int(m.group(1),16),m.group(2)) for m in re.finditer(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);",s)]
    best=None
    for pos,t in ins:
        m=re.search(r"BRA\S*\s+(?:\S+,\s*)?(?:`\(\S+\)|0x([0-9a-f]+))",t)
        if m and m.group(1) and int(m.group(1),16)<pos:
            n=pos-int(m.group(1),16)
            if best is None or n>best[0]: best=(n,int(m.group(1),16),pos)
    body=[t for pos,t in ins if best[1]<=pos<=best[2]]
    c=collections.Counter(re.sub(r"^@!?U?P\w+ ","",t).split()[0].split(".")[0] for t in body)
    return len(body), len(body)/elements, c
