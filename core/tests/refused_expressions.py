"""Expressions that the grammar refuses, each with the place of what is wrong."""

REFUSED_AT = {
    0: "()B [A] 1x A+B a:b:c :A A$$",
    1: "A[] A[B A[B,C[D] A[ A( A(b A(a= A(b, A] A) A,B A;B A<B> A{x}",
    2: (
        "A[,B] A[;B] A(,b) A([1 A(=1) A(1a=2) A(a.b=2) A((or)B) A[[B]] A['b'] A[.x] A(1x(2)) "
        "A(cuda:0[B]) A('b A(1e999) A(}) A(${1}) A(${X)"
    ),
    3: ("A[B,] A[B;] A(b,) A([,1]) A(a;b) (a)(b)C (a) (a)[B] A[B)] A(b] A[b=1] A(x{node})"),
    4: "A[B,,C] A[B;;C] A([1,]) A(a=) A(a=,b) A([a=2]) A(b)(c) A[B](c) A[B][C] A[B]C",
    5: "A(a=b=c) A('a'=2)",
    6: "A(a=1,a=2) A(a=1,b)",
}
REFUSED = {
    **{text: start for start, texts in REFUSED_AT.items() for text in texts.split()},
    "": 0,
    " \n": 0,
    "A[ ]": 1,
    "A(a b)": 4,
    'A("a""b")': 5,
    "A B": 2,
    "é": 0,
    "Aé": 1,
    "A(é)": 2,
    "A\u00a0": 1,
    "\ufeffA": 0,
    "A(\x00)": 2,
    "A\x0b": 1,
    'A("\u200b")': 3,
    "A('x\u2028')": 4,
    "A('\u00a0')": 3,
    "A('\u3164')": 3,
    "A('\ud800')": 3,
    'A("a\nb")': 4,
    "A('a\tb')": 4,
    'A("\x7f")': 3,
    'A("b\\")': 2,
    r'A("\x")': 3,
    r'A("ab\u12")': 5,
    r'A("\ud800")': 3,
    r'A("\udc00\ud800")': 3,
    "A(" + "9" * 641 + ")": 2,
    "A(${X:-a b})": 2,
    'A("ab${")': 5,
    'A("${X:-${Y}}")': 8,
}
