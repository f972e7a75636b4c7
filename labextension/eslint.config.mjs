// ESLint's and typescript-eslint's recommended rules with types, Jupyter's own, and those of
// JupyterLab's extension template. How the code is laid out is prettier's alone.
import eslint from '@eslint/js';
import jupyter from '@jupyter/eslint-plugin';
import prettier from 'eslint-config-prettier';
import { defineConfig, globalIgnores } from 'eslint/config';
import tseslint from 'typescript-eslint';

export default defineConfig(
  globalIgnores(['lib/']),
  { files: ['**/*.mjs', 'src/**/*.{ts,tsx}'], extends: [eslint.configs.recommended] },
  {
    files: ['src/**/*.{ts,tsx}'],
    extends: [tseslint.configs.recommendedTypeChecked, jupyter.configs.recommended],
    plugins: { jupyter },
    languageOptions: { parserOptions: { project: './tsconfig.json' } },
    rules: {
      curly: ['error', 'all'],
      eqeqeq: ['error', 'always', { null: 'ignore' }], // of foreign values: null and undefined
      'no-console': 'error',
      'prefer-arrow-callback': 'error',
      '@typescript-eslint/naming-convention': [
        'error',
        { selector: 'interface', format: ['PascalCase'], custom: { regex: '^I[A-Z]', match: true } }
      ],
      '@typescript-eslint/switch-exhaustiveness-check': [
        'error',
        { considerDefaultExhaustiveForUnions: true }
      ],
      // A namespace of command ids is JupyterLab's own way.
      '@typescript-eslint/no-namespace': 'off',
      // A signal is told whose slot it calls: jupyter/require-signal-this-arg sees to that.
      '@typescript-eslint/unbound-method': 'off',
      // What a plugin of ours imports it needs when it is activated; BokehJS alone is large, and waits.
      'jupyter/prefer-lazy-imports': 'off'
    }
  },
  {
    // Drawn also where there is no JupyterLab, and so no translator: a widget elsewhere, a page.
    files: ['src/{explorer,page}/**', 'src/{categories,figures}.ts'],
    rules: { 'jupyter/no-untranslated-string': 'off' }
  },
  {
    files: ['**/*.mjs'],
    languageOptions: {
      globals: {
        Buffer: false,
        console: false,
        document: false,
        process: false,
        setImmediate: false,
        TextEncoder: false,
        URL: false
      }
    }
  },
  prettier
);
